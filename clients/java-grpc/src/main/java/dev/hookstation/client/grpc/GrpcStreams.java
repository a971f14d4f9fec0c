package dev.hookstation.client.grpc;

import dev.hookstation.client.Hookstation;
import dev.hookstation.client.ReceiveOptions;
import dev.hookstation.client.ReceiveStream;
import dev.hookstation.client.Streams;
import io.grpc.ChannelCredentials;
import io.grpc.ConnectivityState;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.TlsChannelCredentials;
import java.net.URI;
import java.util.concurrent.TimeUnit;

/**
 * A connection to the broker's gRPC server.
 *
 * <pre>{@code
 * try (GrpcStreams streams = GrpcStreams.connect("grpc://127.0.0.1:9090")) {
 *     Worker.builder(hooks, "orders", "billing", handler).streams(streams).build().run();
 * }
 * }</pre>
 */
public final class GrpcStreams implements Streams {
    /** Intervals at which the client checks that the server's host is still there. */
    private static final long KEEPALIVE_S = 30;

    private static final long KEEPALIVE_TIMEOUT_S = 10;
    private static final long CLOSE_S = 5;

    private final ManagedChannel channel;

    private GrpcStreams(ManagedChannel channel) {
        this.channel = channel;
    }

    /**
     * Creates a connection. It does not call the server.
     *
     * @param url {@code grpc://host:port}, or {@code grpcs://host:port} for TLS with the JDK's
     *     certificates
     * @return the connection
     * @throws IllegalArgumentException if the address is invalid
     */
    public static GrpcStreams connect(String url) {
        URI uri = URI.create(url);
        boolean isEncrypted = "grpcs".equals(uri.getScheme());
        boolean hasScheme = isEncrypted || "grpc".equals(uri.getScheme());
        boolean hasPath = uri.getPath() != null && uri.getPath().length() > 1;
        if (!hasScheme || uri.getHost() == null || uri.getPort() < 0 || hasPath) {
            throw new IllegalArgumentException(url + " is not grpc://host:port or grpcs://host:port");
        }
        ChannelCredentials credentials =
                isEncrypted ? TlsChannelCredentials.create() : InsecureChannelCredentials.create();
        return new GrpcStreams(Grpc.newChannelBuilderForAddress(uri.getHost(), uri.getPort(), credentials)
                .maxInboundMessageSize(Integer.MAX_VALUE) // bodies may be as large as the broker allows
                .keepAliveTime(KEEPALIVE_S, TimeUnit.SECONDS)
                .keepAliveTimeout(KEEPALIVE_TIMEOUT_S, TimeUnit.SECONDS)
                .userAgent("hookstation-java/" + Hookstation.VERSION)
                .build());
    }

    /**
     * Uses a connection of the caller's, for example with certificates of its own.
     *
     * @param channel the connection; {@link #close} closes it
     * @return the connection
     */
    public static GrpcStreams over(ManagedChannel channel) {
        return new GrpcStreams(channel);
    }

    @Override
    public ReceiveStream open(
            String key,
            String channelName,
            String consumer,
            ReceiveOptions options,
            int credits,
            ReceiveStream.Listener listener) {
        if (channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
            // Otherwise gRPC would wait up to two minutes before it tries to connect again.
            channel.enterIdle();
        }
        GrpcStream stream = new GrpcStream(listener);
        stream.start(channel, key, GrpcStream.subscription(channelName, consumer, options), credits);
        return stream;
    }

    @Override
    public void close() {
        channel.shutdownNow();
        try {
            channel.awaitTermination(CLOSE_S, TimeUnit.SECONDS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
