package dev.hookstation.client.grpc;

import dev.hookstation.client.Streams;

/** Found by {@link java.util.ServiceLoader}. */
public final class GrpcStreamsProvider implements Streams.Provider {
    /** Creates the provider. */
    public GrpcStreamsProvider() {}

    @Override
    public Streams connect(String url) {
        return GrpcStreams.connect(url);
    }
}
