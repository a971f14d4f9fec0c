package dev.hookstation.client;

import static dev.hookstation.client.Checks.equal;
import static dev.hookstation.client.Checks.isTrue;
import static dev.hookstation.client.Checks.thrown;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;

/** Tests of workers over the streams of the broker that HOOKSTATION_GRPC_URL names. */
public final class StreamTests {
    private static final long PATIENCE_S = 120;
    private static final Hookstation HOOKS = Hookstation.fromEnvironment();

    private StreamTests() {}

    public static void main(String[] arguments) {
        Checks.runAll(StreamTests.class);
    }

    private static String channel(String name) {
        String channel = "java-stream-" + name + "-" + System.nanoTime();
        HOOKS.createChannel(channel, Map.of());
        HOOKS.register(channel, "all", Map.of());
        return channel;
    }

    private static void publish(String channel, int count) {
        List<Outgoing> messages = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            messages.add(Outgoing.of("" + number));
        }
        HOOKS.publishBatch(channel, messages);
    }

    /** A client that reaches only the gRPC server. */
    private static Hookstation.Builder onlyStreams() {
        return Hookstation.builder().url("http://127.0.0.1:1").retries(0);
    }

    private static Thread start(Worker worker) {
        Thread thread = new Thread(worker::run);
        thread.start();
        return thread;
    }

    private static void waitUntil(BooleanSupplier done) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (!done.getAsBoolean()) {
            isTrue(System.nanoTime() < end, "it did not happen");
            Thread.sleep(50);
        }
    }

    /** Whether so many messages are delivered, each at its first attempt. */
    private static boolean areDelivered(String channel, int count) {
        List<Resource> found = HOOKS.deliveries(channel, "all", Filter.all()).stream().toList();
        return found.size() == count
                && found.stream().allMatch(one -> one.text("state").equals("Delivered"))
                && found.stream().allMatch(one -> one.number("attempt_count") == 1);
    }

    static void testWorkerDoesNothingOverRest() throws InterruptedException {
        String channel = channel("only");
        publish(channel, 200);
        Set<String> handled = ConcurrentHashMap.newKeySet();
        Worker worker = Worker.builder(onlyStreams().build(), channel, "all", delivery -> {
                    handled.add(new String(delivery.body(), StandardCharsets.UTF_8));
                    Thread.sleep(20);
                })
                .concurrency(16)
                .lease(Duration.ofSeconds(2))
                .build();
        Thread thread = start(worker);

        waitUntil(() -> handled.size() == 200);
        worker.stop();
        thread.join();

        isTrue(areDelivered(channel, 200), HOOKS.deliveries(channel, "all", Filter.all()));
    }

    static void testLeaseIsExtendedOverTheStream() throws InterruptedException {
        String channel = channel("lease");
        publish(channel, 1);
        AtomicInteger calls = new AtomicInteger();
        Worker worker = Worker.builder(onlyStreams().build(), channel, "all", delivery -> {
                    calls.incrementAndGet();
                    Thread.sleep(6_000);
                })
                .lease(Duration.ofSeconds(2))
                .build();
        Thread thread = start(worker);

        waitUntil(() -> areDelivered(channel, 1));

        worker.stop();
        thread.join();
        equal(1, calls.get());
    }

    static void testWorkerHoldsNoMoreMessagesThanItHandles() throws InterruptedException {
        String channel = channel("most");
        publish(channel, 20);
        Semaphore begun = new Semaphore(0);
        CountDownLatch mayEnd = new CountDownLatch(1);
        Worker worker = Worker.builder(HOOKS, channel, "all", delivery -> {
                    begun.release();
                    mayEnd.await();
                })
                .concurrency(3)
                .build();
        Thread thread = start(worker);

        isTrue(begun.tryAcquire(3, PATIENCE_S, TimeUnit.SECONDS), begun);
        isTrue(!begun.tryAcquire(1, TimeUnit.SECONDS), "a fourth one");
        // Another worker gets all the others.
        List<Delivery> others =
                HOOKS.receiveBatch(channel, "all", ReceiveOptions.defaults().max(100));
        worker.stop();
        mayEnd.countDown();
        thread.join();

        equal(17, others.size());
    }

    static void testRefusalsThatDoNotPassAreThrown() {
        String channel = channel("refused");
        HookstationException missing = thrown(
                HookstationException.NotFound.class,
                () -> Worker.builder(onlyStreams().build(), channel, "nobody", it -> {})
                        .build()
                        .run());
        equal("unknown_consumer", missing.code());
        equal(404, missing.status());
        thrown(
                HookstationException.Unauthorized.class,
                () -> Worker.builder(onlyStreams().key("hsk_made-up").build(), channel, "all", it -> {})
                        .build()
                        .run());
        thrown(
                IllegalArgumentException.class,
                () -> Worker.builder(onlyStreams().grpc("127.0.0.1:1").build(), channel, "all", it -> {})
                        .build()
                        .run());
    }

    static void testWithoutAServerTheWorkerUsesRestUntilItIsThere() throws InterruptedException {
        String channel = channel("away");
        Forwarder forwarder = new Forwarder(HOOKS.grpc());
        AtomicInteger handled = new AtomicInteger();
        Worker worker = Worker.builder(
                        Hookstation.builder().grpc(forwarder.url()).build(),
                        channel,
                        "all",
                        it -> handled.incrementAndGet())
                .waitFor(Duration.ofSeconds(1))
                .build();
        Thread thread = start(worker);
        publish(channel, 5);
        waitUntil(() -> areDelivered(channel, 5));
        equal(0L, forwarder.received.get());

        forwarder.listen();
        // For ten seconds the worker still uses the REST API.
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        for (int count = 6; forwarder.received.get() < 300_000; count++) {
            isTrue(System.nanoTime() < end, forwarder.received);
            int published = count;
            HOOKS.publish(channel, Outgoing.of("x".repeat(300_000)));
            waitUntil(() -> areDelivered(channel, published));
            Thread.sleep(500);
        }

        worker.stop();
        thread.join();
    }

    static void testWhatABrokenStreamDidNotSettleIsSettledOverRest() throws InterruptedException {
        String channel = channel("broken");
        publish(channel, 4);
        Forwarder forwarder = new Forwarder(HOOKS.grpc());
        forwarder.listen();
        CountDownLatch begun = new CountDownLatch(4);
        CountDownLatch mayEnd = new CountDownLatch(1);
        Worker worker = Worker.builder(
                        Hookstation.builder().grpc(forwarder.url()).build(), channel, "all", it -> {
                            begun.countDown();
                            mayEnd.await();
                        })
                .concurrency(4)
                .waitFor(Duration.ofSeconds(1))
                .build();
        Thread thread = start(worker);
        isTrue(begun.await(PATIENCE_S, TimeUnit.SECONDS), begun);

        forwarder.cut();
        mayEnd.countDown();

        waitUntil(() -> areDelivered(channel, 4));
        worker.stop();
        thread.join();
    }

    static void testBodyOfAMegabyteComesOverTheStream() throws InterruptedException {
        String channel = channel("large");
        String body = "x".repeat(1_000_000);
        HOOKS.publish(channel, Outgoing.of(body));
        AtomicInteger length = new AtomicInteger();
        Worker worker = Worker.builder(
                        onlyStreams().build(), channel, "all", it -> length.set(it.body().length))
                .build();
        Thread thread = start(worker);

        waitUntil(() -> areDelivered(channel, 1));

        worker.stop();
        thread.join();
        equal(body.length(), length.get());
    }

    static void testMessagesHaveTheFieldsOfTheRestApi() throws InterruptedException {
        String channel = channel("fields");
        HOOKS.publish(
                channel,
                Outgoing.of(Map.of("id", 7)).eventType("order.created").priority(7).header("X-Shop", "tea"));
        List<Delivery> found = new ArrayList<>();
        Worker worker = Worker.builder(onlyStreams().build(), channel, "all", found::add).build();
        Thread thread = start(worker);
        waitUntil(() -> areDelivered(channel, 1));
        worker.stop();
        thread.join();

        Delivery one = found.get(0);
        equal("order.created", one.eventType());
        equal(7, one.priority());
        equal(1, one.attempt());
        equal("application/json", one.contentType());
        equal(Map.of("id", 7L), Json.read(new String(one.body(), StandardCharsets.UTF_8)));
        isTrue(one.leaseExpiresAt().isAfter(one.acceptedAt()), one.leaseExpiresAt());
        isTrue(one.headers().containsValue("tea"), one.headers());
    }
}
