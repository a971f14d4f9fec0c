package dev.hookstation.client;

import java.util.Iterator;
import java.util.Optional;
import java.util.ServiceLoader;

/**
 * A connection over which a {@link Worker} receives and settles messages without a request for each
 * batch. The artifact {@code hookstation-client-grpc} implements it with gRPC.
 */
public interface Streams extends AutoCloseable {
    /**
     * Begins to receive. It returns at once; {@link ReceiveStream#failure} has the error if the
     * broker refuses or cannot be reached.
     *
     * @param key the API key, with the scope {@code receive}
     * @param channel the channel
     * @param consumer a pull consumer of it
     * @param options all but {@code max} and {@code waitFor}, which a stream does not have
     * @param credits how many messages the broker may send before {@link ReceiveStream#grant}
     * @param listener gets the messages
     * @return the stream
     */
    ReceiveStream open(
            String key,
            String channel,
            String consumer,
            ReceiveOptions options,
            int credits,
            ReceiveStream.Listener listener);

    /** Ends all streams at once. */
    @Override
    void close();

    /** Connects to servers; {@link ServiceLoader} finds it on the class path. */
    interface Provider {
        /**
         * Creates a connection. It does not call the server.
         *
         * @param url {@code grpc://host:port}, or {@code grpcs://host:port} for TLS
         * @return the connection
         * @throws IllegalArgumentException if the address is invalid
         */
        Streams connect(String url);
    }

    /**
     * Creates a connection with the {@link Provider} on the class path. It does not call the server.
     *
     * @param url {@code grpc://host:port}, or {@code grpcs://host:port} for TLS
     * @return the connection, empty if {@code hookstation-client-grpc} is not on the class path
     * @throws IllegalArgumentException if the address is invalid
     */
    static Optional<Streams> connect(String url) {
        // The loader of this class knows the other jar, too; that of the thread may not.
        Iterator<Provider> found =
                ServiceLoader.load(Provider.class, Streams.class.getClassLoader()).iterator();
        return found.hasNext() ? Optional.of(found.next().connect(url)) : Optional.empty();
    }
}
