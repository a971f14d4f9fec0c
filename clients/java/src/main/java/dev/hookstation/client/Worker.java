package dev.hookstation.client;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * Calls a handler for each message of a pull consumer, in threads, and extends the leases of
 * running handlers.
 *
 * <p>When the handler returns, the worker acknowledges the message. After a {@link RetryException}
 * it is delivered again after that time; after a {@link RejectException} it is a dead letter at
 * once; any other exception is a failed attempt.
 *
 * <pre>{@code
 * Worker.builder(hooks, "orders", "billing", delivery -> bill(delivery.as(Order.class)))
 *         .concurrency(8)
 *         .build()
 *         .run();
 * }</pre>
 *
 * <p>If the client has the address of a gRPC server, and {@code hookstation-client-grpc} is on the
 * class path, the worker receives and settles messages over one stream. While it cannot reach that
 * server, it uses the REST API.
 */
public final class Worker {
    private static final System.Logger LOGGER = System.getLogger(Worker.class.getName());
    private static final int MAX_LEASES = 100;
    private static final int MAX_WORKER_ID = 64;

    /** Pause after a receive call whose retries failed. */
    private static final long AFTER_FAILURE_MS = 2_000;

    /** For how long the worker uses the REST API after its stream has ended. */
    private static final Duration STREAM_RETRY = Duration.ofSeconds(10);

    /** For how long the broker may take to confirm the last settlements of a stream. */
    private static final Duration STREAM_END = Duration.ofSeconds(5);

    private final Builder settings;
    private final ExecutorService pool;
    private final CountDownLatch ended = new CountDownLatch(1);
    private final Map<String, Delivery> held = new ConcurrentHashMap<>();

    /** Used only by the thread of {@link #run}. */
    private ReceiveOptions options;

    /** When a stream is tried again, by {@link System#nanoTime}; only for the thread of run. */
    private long streamAt = System.nanoTime();

    /** Guards the fields below, and is notified of their changes. */
    private final Object lock = new Object();

    private boolean isStopping;
    private int running;

    /** The stream over which messages come and are settled; null means the REST API. */
    private ReceiveStream stream;

    private Worker(Builder settings) {
        this.settings = settings;
        pool = Executors.newFixedThreadPool(settings.concurrency);
        options = ReceiveOptions.defaults()
                .waitFor(settings.waitFor)
                .lease(settings.lease)
                .workerId(settings.workerId)
                .resume(settings.resume)
                .sticky(settings.sticky);
    }

    /** Handles one message. */
    @FunctionalInterface
    public interface Handler {
        /**
         * Handles a message.
         *
         * @param delivery the message
         * @throws Exception {@link RetryException}, {@link RejectException}, or anything else for a
         *     failed attempt
         */
        void handle(Delivery delivery) throws Exception;
    }

    /**
     * Creates a builder of a worker.
     *
     * @param client the broker
     * @param channel the channel
     * @param consumer a pull consumer of it
     * @param handler called for each message, by several threads
     * @return the builder
     */
    public static Builder builder(Hookstation client, String channel, String consumer, Handler handler) {
        return new Builder(client, channel, consumer, handler);
    }

    /** Builds a worker. */
    public static final class Builder implements Cloneable {
        private final Hookstation client;
        private final String channel;
        private final String consumer;
        private final Handler handler;
        private int concurrency = 8;
        private Duration lease = Duration.ofSeconds(30);
        private Duration waitFor = Duration.ofSeconds(5);
        private Duration shutdownTimeout = Duration.ofSeconds(30);
        private String workerId = defaultWorkerId();
        private boolean resume;
        private boolean sticky;
        private Streams streams;

        private Builder(Hookstation client, String channel, String consumer, Handler handler) {
            this.client = client;
            this.channel = channel;
            this.consumer = consumer;
            this.handler = handler;
        }

        /**
         * Sets the maximum number of leased messages.
         *
         * @param value the number, by default 8
         * @return this builder
         */
        public Builder concurrency(int value) {
            concurrency = value;
            return this;
        }

        /**
         * Sets the duration of a lease, which is extended while the handler runs.
         *
         * @param value the time, by default 30 seconds
         * @return this builder
         */
        public Builder lease(Duration value) {
            lease = value;
            return this;
        }

        /**
         * Sets how long one call waits for messages. Stopping may take as long.
         *
         * @param value the time, by default 5 seconds
         * @return this builder
         */
        public Builder waitFor(Duration value) {
            waitFor = value;
            return this;
        }

        /**
         * Sets how long {@link Worker#run} waits for running handlers when it stops.
         *
         * @param value the time, by default 30 seconds
         * @return this builder
         */
        public Builder shutdownTimeout(Duration value) {
            shutdownTimeout = value;
            return this;
        }

        /**
         * Sets the worker's name.
         *
         * @param value up to 64 characters; by default host name and process id
         * @return this builder
         */
        public Builder workerId(String value) {
            workerId = value;
            return this;
        }

        /**
         * Sets whether the worker first receives the messages that a killed worker with the same
         * name had leased.
         *
         * @param value whether to do so
         * @return this builder
         */
        public Builder resume(boolean value) {
            resume = value;
            return this;
        }

        /**
         * Sets whether messages of an ordering key go to the same worker.
         *
         * @param value whether to do so
         * @return this builder
         */
        public Builder sticky(boolean value) {
            sticky = value;
            return this;
        }

        /**
         * Sets the connection over which the worker receives, in place of one of its own to the
         * client's gRPC server: workers may share it, and it may have certificates of its own.
         *
         * @param value a connection, which the worker does not close
         * @return this builder
         */
        public Builder streams(Streams value) {
            streams = value;
            return this;
        }

        /**
         * Creates the worker.
         *
         * @return the worker, which can run once
         */
        public Worker build() {
            return new Worker(clone());
        }

        @Override
        protected Builder clone() {
            try {
                return (Builder) super.clone();
            } catch (CloneNotSupportedException error) { // it is Cloneable
                throw new AssertionError(error);
            }
        }

        private static String defaultWorkerId() {
            String host;
            try {
                host = InetAddress.getLocalHost().getHostName();
            } catch (UnknownHostException error) {
                host = "unknown";
            }
            String id = host + "-" + ProcessHandle.current().pid();
            return id.substring(0, Math.min(id.length(), MAX_WORKER_ID));
        }
    }

    /**
     * Receives and handles messages until {@link #stop}, SIGTERM or SIGINT. Then it receives no
     * more, and waits for running handlers. Handlers that do not end in time are interrupted; their
     * messages are delivered again when the leases end.
     *
     * @throws HookstationException if an error is not temporary, such as a consumer that does not
     *     exist
     */
    public void run() {
        Thread hook = new Thread(this::stopAndWait, "hookstation-shutdown");
        Runtime.getRuntime().addShutdownHook(hook);
        ScheduledExecutorService heartbeat = Executors.newSingleThreadScheduledExecutor();
        long third = Math.max(1, settings.lease.toMillis() / 3);
        heartbeat.scheduleWithFixedDelay(this::extendLeases, third, third, TimeUnit.MILLISECONDS);
        Streams connected = null;
        try {
            if (settings.streams == null && !settings.client.grpc().isEmpty()) {
                connected = connect();
            }
            Streams streams = settings.streams == null ? connected : settings.streams;
            while (!isStopping()) {
                if (streams != null && System.nanoTime() - streamAt >= 0) {
                    receiveStream(streams);
                } else {
                    receive();
                }
            }
        } finally {
            finish();
            endStream();
            heartbeat.shutdownNow();
            if (connected != null) {
                connected.close();
            }
            ended.countDown();
            removeHook(hook);
        }
    }

    /** Stops receiving. Any thread and a handler may call it. */
    public void stop() {
        synchronized (lock) {
            isStopping = true;
            lock.notifyAll();
        }
    }

    private boolean isStopping() {
        synchronized (lock) {
            return isStopping;
        }
    }

    private Streams connect() {
        Streams connected = Streams.connect(settings.client.grpc()).orElse(null);
        if (connected == null) {
            LOGGER.log(
                    System.Logger.Level.WARNING,
                    "using the REST API: hookstation-client-grpc is not on the class path");
        }
        return connected;
    }

    private void stopAndWait() {
        stop();
        try {
            ended.await();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private static void removeHook(Thread hook) {
        try {
            Runtime.getRuntime().removeShutdownHook(hook);
        } catch (IllegalStateException error) { // the shutdown hook has stopped the worker
            LOGGER.log(System.Logger.Level.DEBUG, "the process ends");
        }
    }

    /** Receives once over the REST API, and starts the handlers. */
    private void receive() {
        try {
            int free = waitForFree();
            if (free == 0) {
                return;
            }
            List<Delivery> received = settings.client.receiveBatch(
                    settings.channel, settings.consumer, options.max(Math.min(free, MAX_LEASES)));
            options = options.resume(false);
            List<String> left = received.stream()
                    .filter(delivery -> !start(delivery))
                    .map(Delivery::lease)
                    .toList();
            if (!left.isEmpty()) {
                settle(Settlement.release(Duration.ZERO, left));
            }
        } catch (HookstationException error) {
            if (!isTemporary(error)) {
                throw error;
            }
            if (Thread.currentThread().isInterrupted()) {
                stop();
                return;
            }
            LOGGER.log(System.Logger.Level.WARNING, "cannot receive: " + error.getMessage());
            pause();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            stop();
        }
    }

    /** Returns how many more messages may be leased, once it is not zero; zero if the worker stops. */
    private int waitForFree() throws InterruptedException {
        synchronized (lock) {
            while (running >= settings.concurrency && !isStopping) {
                lock.wait();
            }
            return isStopping ? 0 : settings.concurrency - running;
        }
    }

    private void pause() {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(AFTER_FAILURE_MS);
        try {
            synchronized (lock) {
                for (long left = AFTER_FAILURE_MS; left > 0 && !isStopping; ) {
                    lock.wait(left);
                    left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
                }
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            stop();
        }
    }

    /** Receives over a stream until it ends, the broker stops or this worker does. */
    private void receiveStream(Streams streams) {
        ReceiveStream opened;
        synchronized (lock) {
            // Each slot that becomes free from now on is granted when its handler ends.
            opened = streams.open(
                    settings.client.key(),
                    settings.channel,
                    settings.consumer,
                    options,
                    settings.concurrency - running,
                    new Listener());
            stream = opened;
        }
        try {
            synchronized (lock) {
                while (!isStopping && !opened.isOver()) {
                    lock.wait();
                }
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            stop();
        }
        options = options.resume(options.resume() && !opened.isOpen());
        if (!isStopping()) {
            endStream();
            streamAt = System.nanoTime() + STREAM_RETRY.toNanos();
            noteEnd(opened);
        }
    }

    /** Throws the error that ended a stream, unless it is temporary. */
    private static void noteEnd(ReceiveStream stream) {
        HookstationException failure = stream.failure();
        if (failure == null) {
            LOGGER.log(System.Logger.Level.INFO, "the broker ended the stream, using the REST API");
        } else if (stream.isOpen() || isTemporary(failure)) {
            // A stream that was accepted ends with a settlement that is refused, too.
            LOGGER.log(
                    System.Logger.Level.WARNING,
                    "the stream ended, using the REST API: " + failure.getMessage());
        } else {
            throw failure;
        }
    }

    /** Settles over the REST API what the stream has not settled. */
    private void endStream() {
        ReceiveStream last;
        synchronized (lock) {
            last = stream;
            stream = null;
        }
        if (last != null) {
            last.end(STREAM_END).forEach(this::settleOverRest);
        }
    }

    private static boolean isTemporary(HookstationException error) {
        return error instanceof HookstationException.ConnectionFailed
                || error instanceof HookstationException.RateLimited
                || error instanceof HookstationException.Unavailable;
    }

    /** Starts handlers of the messages of a stream. */
    private final class Listener implements ReceiveStream.Listener {
        @Override
        public void received(Resource message, byte[] body) {
            Settlement release = Settlement.release(Duration.ZERO, List.of(message.text("lease")));
            if (isStopping()) {
                settle(release);
                return;
            }
            try {
                if (!start(new Delivery(settings.client, message, body))) {
                    settle(release);
                }
            } catch (HookstationException error) {
                LOGGER.log(
                        System.Logger.Level.WARNING,
                        "cannot get the body of " + message.text("id") + ": " + error.getMessage());
                settle(release);
                synchronized (lock) {
                    grantOne();
                }
            }
        }

        @Override
        public void over() {
            synchronized (lock) {
                lock.notifyAll();
            }
        }
    }

    /** Starts the handler of a message; returns false if the worker stops. */
    private boolean start(Delivery delivery) {
        synchronized (lock) {
            if (isStopping) {
                return false;
            }
            running++;
            held.put(delivery.lease(), delivery);
            pool.execute(() -> handle(delivery));
            return true;
        }
    }

    private void handle(Delivery delivery) {
        Settlement settlement;
        List<String> leases = List.of(delivery.lease());
        try {
            settings.handler.handle(delivery);
            settlement = Settlement.ack(leases);
        } catch (Throwable error) { // an Error of one handler does not end the others
            settlement = Settlement.nack(refusal(delivery, error), leases);
        }
        held.remove(delivery.lease());
        try {
            settle(settlement);
        } finally {
            synchronized (lock) {
                running--;
                if (stream == null) {
                    lock.notifyAll();
                } else {
                    grantOne();
                }
            }
        }
    }

    /** Lets the stream bring one more message; the caller has the lock. */
    private void grantOne() {
        if (stream != null && !isStopping) {
            stream.grant(1);
        }
    }

    /** The report for an error of a handler. */
    static Nack refusal(Delivery delivery, Throwable error) {
        if (error instanceof RetryException retry) {
            return Nack.because(String.valueOf(retry.getMessage())).after(retry.after());
        }
        if (error instanceof RejectException) {
            return Nack.because(String.valueOf(error.getMessage())).asFinal();
        }
        LOGGER.log(System.Logger.Level.ERROR, "the handler of " + delivery.id() + " failed", error);
        return Nack.because(error.getClass().getSimpleName() + ": " + error.getMessage());
    }

    private void settle(Settlement settlement) {
        synchronized (lock) {
            if (stream != null) {
                stream.settle(settlement).thenAccept(settled -> note(settlement, settled));
                return;
            }
        }
        settleOverRest(settlement);
    }

    private void settleOverRest(Settlement settlement) {
        try {
            note(settlement, settlement.over(settings.client));
        } catch (HookstationException error) {
            String said = settlement.action() == Settlement.Action.EXTEND
                    ? "cannot extend leases: "
                    : "cannot settle, the message will be delivered again: ";
            LOGGER.log(System.Logger.Level.WARNING, said + error.getMessage());
        }
    }

    private void note(Settlement settlement, Settled settled) {
        settled.failed().forEach((lease, reason) -> {
            if (settlement.action() == Settlement.Action.EXTEND) {
                lose(lease, reason);
            } else {
                LOGGER.log(
                        System.Logger.Level.WARNING,
                        "a lease ended before it was settled (" + settlement.action() + "): " + reason);
            }
        });
    }

    private void extendLeases() {
        List<String> leases = new ArrayList<>(held.keySet());
        for (int from = 0; from < leases.size(); from += MAX_LEASES) {
            List<String> some = leases.subList(from, Math.min(from + MAX_LEASES, leases.size()));
            try {
                settle(Settlement.extend(settings.lease, some));
            } catch (RuntimeException error) { // an exception would end the thread that extends leases
                LOGGER.log(System.Logger.Level.WARNING, "cannot extend leases", error);
            }
        }
    }

    private void lose(String lease, String reason) {
        // A message that was settled meanwhile has no entry.
        Delivery lost = held.remove(lease);
        if (lost != null) {
            lost.markLost();
            LOGGER.log(
                    System.Logger.Level.WARNING,
                    "the lease of " + lost.id() + " cannot be extended: " + reason);
        }
    }

    private void finish() {
        stop();
        pool.shutdown();
        boolean isInterrupted = Thread.interrupted();
        try {
            if (!pool.awaitTermination(settings.shutdownTimeout.toMillis(), TimeUnit.MILLISECONDS)) {
                int left;
                synchronized (lock) {
                    left = running;
                }
                LOGGER.log(System.Logger.Level.WARNING, left + " handlers did not end in time");
                pool.shutdownNow();
            }
        } catch (InterruptedException error) {
            pool.shutdownNow();
            isInterrupted = true;
        }
        if (isInterrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
