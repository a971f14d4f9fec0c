package dev.hookstation.client;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Receives and settles for the driver over streams, each of which is open for one operation. */
final class DriverStreams {
    private static final long PATIENCE_S = 60;

    /** How long another message may take to follow. */
    private static final long GAP_MS = 300;

    /** How long the first message may take at least, since the broker has accepted the stream. */
    private static final long FIRST_MS = 500;

    private final Streams streams;
    private final String key;

    /** Of the last receive that was not refused; null before the first one. */
    private String channel;

    private String consumer;

    DriverStreams(Streams streams, String key) {
        this.streams = streams;
        this.key = key;
    }

    /** Whether there was no receive, so that it is not known over which stream to settle. */
    boolean isNew() {
        return channel == null;
    }

    List<Delivery> receive(Hookstation client, String channel, String consumer, ReceiveOptions options) {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (true) {
            try {
                return receiveOnce(client, channel, consumer, options);
            } catch (HookstationException.ConnectionFailed error) {
                // As a worker does: a broker that was killed comes back.
                if (System.nanoTime() > end) {
                    throw error;
                }
                pause();
            }
        }
    }

    private static void pause() {
        try {
            Thread.sleep(GAP_MS);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private List<Delivery> receiveOnce(
            Hookstation client, String channel, String consumer, ReceiveOptions options) {
        Received received = new Received(client);
        ReceiveStream stream = streams.open(key, channel, consumer, options, options.max(), received);
        List<Delivery> found = new ArrayList<>();
        try {
            while (!stream.isOpen() && !stream.isOver()) {
                Thread.sleep(5);
            }
            long wait = Math.max(options.waitFor().toMillis(), FIRST_MS);
            while (found.size() < options.max() && !stream.isOver()) {
                Delivery next = received.queue.poll(wait, TimeUnit.MILLISECONDS);
                if (next == null) {
                    break;
                }
                found.add(next);
                wait = GAP_MS;
            }
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
        stream.end(Duration.ofSeconds(PATIENCE_S));
        received.queue.drainTo(found);
        check(stream);
        this.channel = channel;
        this.consumer = consumer;
        return found;
    }

    Settled settle(Settlement settlement) {
        ReceiveStream stream = streams.open(
                key, channel, consumer, ReceiveOptions.defaults(), 0, new Received(null));
        try {
            return stream.settle(settlement).get(PATIENCE_S, TimeUnit.SECONDS);
        } catch (ExecutionException error) {
            check(stream);
            throw new IllegalStateException("the stream ended without a result", error);
        } catch (InterruptedException | TimeoutException error) {
            throw new IllegalStateException(error);
        } finally {
            stream.end(Duration.ofSeconds(PATIENCE_S));
        }
    }

    private static void check(ReceiveStream stream) {
        if (stream.failure() != null) {
            throw stream.failure();
        }
    }

    /** Keeps the messages of a stream. */
    private static final class Received implements ReceiveStream.Listener {
        private final BlockingQueue<Delivery> queue = new LinkedBlockingQueue<>();
        private final Hookstation client;

        private Received(Hookstation client) {
            this.client = client;
        }

        @Override
        public void received(Resource message, byte[] body) {
            queue.add(new Delivery(client, message, body));
        }
    }
}
