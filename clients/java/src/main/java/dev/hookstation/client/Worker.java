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
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

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
 */
public final class Worker {
    private static final System.Logger LOGGER = System.getLogger(Worker.class.getName());
    private static final int MAX_LEASES = 100;
    private static final int MAX_WORKER_ID = 64;

    /** Pause after a receive call whose retries failed. */
    private static final long AFTER_FAILURE_MS = 2_000;

    private final Builder settings;
    private final CountDownLatch stopping = new CountDownLatch(1);
    private final CountDownLatch ended = new CountDownLatch(1);
    private final AtomicInteger running = new AtomicInteger();
    private final Map<String, Delivery> held = new ConcurrentHashMap<>();

    private Worker(Builder settings) {
        this.settings = settings;
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
        ExecutorService pool = Executors.newFixedThreadPool(settings.concurrency);
        ScheduledExecutorService heartbeat = Executors.newSingleThreadScheduledExecutor();
        long third = Math.max(1, settings.lease.toMillis() / 3);
        heartbeat.scheduleWithFixedDelay(this::extendLeases, third, third, TimeUnit.MILLISECONDS);
        Semaphore free = new Semaphore(settings.concurrency);
        ReceiveOptions options = ReceiveOptions.defaults()
                .waitFor(settings.waitFor)
                .lease(settings.lease)
                .workerId(settings.workerId)
                .resume(settings.resume)
                .sticky(settings.sticky);
        try {
            while (!isStopping()) {
                if (receive(options, pool, free)) {
                    options = options.resume(false);
                }
            }
        } finally {
            finish(pool);
            heartbeat.shutdownNow();
            ended.countDown();
            removeHook(hook);
        }
    }

    /** Stops receiving. Any thread and a handler may call it. */
    public void stop() {
        stopping.countDown();
    }

    private boolean isStopping() {
        return stopping.getCount() == 0;
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

    /**
     * Receives as many messages as may be leased and starts their handlers; returns whether the
     * call succeeded.
     */
    private boolean receive(ReceiveOptions options, ExecutorService pool, Semaphore free) {
        try {
            if (!free.tryAcquire(500, TimeUnit.MILLISECONDS)) {
                return false;
            }
            free.release();
            List<Delivery> received = settings.client.receiveBatch(
                    settings.channel,
                    settings.consumer,
                    options.max(Math.min(free.availablePermits(), MAX_LEASES)));
            if (isStopping() && !received.isEmpty()) {
                String[] leases = received.stream().map(Delivery::lease).toArray(String[]::new);
                say(() -> settings.client.release(Duration.ZERO, leases));
                return true;
            }
            for (Delivery delivery : received) {
                free.acquire();
                running.incrementAndGet();
                held.put(delivery.lease(), delivery);
                pool.execute(() -> {
                    try {
                        handle(delivery);
                    } finally {
                        running.decrementAndGet();
                        free.release();
                    }
                });
            }
            return true;
        } catch (HookstationException.ConnectionFailed
                | HookstationException.RateLimited
                | HookstationException.Unavailable error) {
            if (Thread.currentThread().isInterrupted()) {
                stop();
                return false;
            }
            LOGGER.log(System.Logger.Level.WARNING, "cannot receive: " + error.getMessage());
            pause();
            return false;
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            stop();
            return false;
        }
    }

    private void pause() {
        try {
            stopping.await(AFTER_FAILURE_MS, TimeUnit.MILLISECONDS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            stop();
        }
    }

    private void handle(Delivery delivery) {
        Runnable settle;
        try {
            settings.handler.handle(delivery);
            settle = delivery::ack;
        } catch (Throwable error) { // an Error of one handler does not end the others
            Nack nack = refusal(delivery, error);
            settle = () -> delivery.nack(nack);
        }
        held.remove(delivery.lease());
        say(settle);
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

    private void say(Runnable call) {
        try {
            call.run();
        } catch (HookstationException error) {
            LOGGER.log(
                    System.Logger.Level.WARNING,
                    "cannot settle, the message will be delivered again: " + error.getMessage());
        }
    }

    private void extendLeases() {
        List<String> leases = new ArrayList<>(held.keySet());
        for (int from = 0; from < leases.size(); from += MAX_LEASES) {
            List<String> some = leases.subList(from, Math.min(from + MAX_LEASES, leases.size()));
            try {
                Settled settled = settings.client.extend(settings.lease, some.toArray(String[]::new));
                settled.failed().forEach(this::lose);
            } catch (RuntimeException error) { // an exception would end the thread that extends leases
                LOGGER.log(System.Logger.Level.WARNING, "cannot extend leases: " + error.getMessage());
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

    private void finish(ExecutorService pool) {
        pool.shutdown();
        boolean isInterrupted = Thread.interrupted();
        try {
            if (!pool.awaitTermination(settings.shutdownTimeout.toMillis(), TimeUnit.MILLISECONDS)) {
                LOGGER.log(System.Logger.Level.WARNING, running.get() + " handlers did not end in time");
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
