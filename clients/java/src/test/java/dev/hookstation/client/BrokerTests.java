package dev.hookstation.client;

import static dev.hookstation.client.Checks.equal;
import static dev.hookstation.client.Checks.isTrue;
import static dev.hookstation.client.Checks.thrown;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BooleanSupplier;

/** Tests of workers against the broker that HOOKSTATION_URL names. */
public final class BrokerTests {
    private static final long PATIENCE_S = 120;
    private static final Hookstation HOOKS = Hookstation.fromEnvironment();

    private BrokerTests() {}

    public static void main(String[] arguments) {
        if (arguments.length > 0) {
            workUntilKilled(arguments[0]);
        }
        Checks.runAll(BrokerTests.class);
    }

    /** For a test that ends the process with SIGTERM: prints what it handles. */
    private static void workUntilKilled(String channel) {
        Worker.builder(HOOKS, channel, "packing", delivery -> {
                    System.out.println("began " + delivery.id());
                    Thread.sleep(3_000);
                    System.out.println("handled " + delivery.id());
                })
                .waitFor(Duration.ofSeconds(1))
                .build()
                .run();
        System.out.println("ended");
    }

    private static String channel(String name) {
        String channel = "java-" + name + "-" + System.nanoTime();
        HOOKS.createChannel(channel, Map.of());
        HOOKS.register(channel, "packing", Map.of("max_attempts", 3, "retry", List.of(1)));
        return channel;
    }

    private static Thread start(Worker worker) {
        Thread thread = new Thread(worker::run);
        thread.start();
        return thread;
    }

    private static Worker.Builder builder(String channel, Worker.Handler handler) {
        return Worker.builder(HOOKS, channel, "packing", handler).waitFor(Duration.ofSeconds(1));
    }

    private static String send(String channel, String body) {
        return HOOKS.publish(channel, Outgoing.of(body)).id();
    }

    private static boolean isFinished(String id) {
        return HOOKS.message(id).text("state").equals("Finished");
    }

    private static void waitUntil(BooleanSupplier done) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (!done.getAsBoolean()) {
            isTrue(System.nanoTime() < end, "it did not happen");
            Thread.sleep(50);
        }
    }

    static void testWorkerSettlesByTheHandlersResult() throws InterruptedException {
        String channel = channel("says");
        Map<String, List<Long>> attempts = new ConcurrentHashMap<>();
        Worker worker = builder(channel, delivery -> {
                    String body = new String(delivery.body());
                    attempts.computeIfAbsent(body, it -> new ArrayList<>()).add(System.nanoTime());
                    if (body.equals("reject")) {
                        throw new RejectException("no such order");
                    } else if (body.equals("retry") && delivery.attempt() == 1) {
                        throw new RetryException(Duration.ofSeconds(2), "not yet");
                    } else if (body.equals("error") && delivery.attempt() == 1) {
                        throw new AssertionError("a bug");
                    } else if (body.equals("fail")) {
                        throw new IllegalStateException("no database");
                    }
                })
                .build();
        List<String> ids = new ArrayList<>();
        for (String body : List.of("handle", "reject", "retry", "error", "fail")) {
            ids.add(send(channel, body));
        }
        Thread thread = start(worker);

        for (String id : ids) {
            waitUntil(() -> isFinished(id));
        }
        worker.stop();
        thread.join();

        Map<String, String> dead = new ConcurrentHashMap<>();
        HOOKS.deadLetters(channel, "packing", Filter.all())
                .forEach(item -> dead.put(item.text("message_id"), item.text("reason")));
        equal(2, dead.size());
        equal("exhausted", dead.get(ids.get(4)));
        isTrue(dead.containsKey(ids.get(1)), dead);
        Map.of("handle", 1, "reject", 1, "retry", 2, "error", 2, "fail", 3)
                .forEach((body, count) -> equal(count, attempts.get(body).size()));
        long waited = attempts.get("retry").get(1) - attempts.get("retry").get(0);
        isTrue(waited >= 2_000_000_000L, waited);
    }

    static void testLeaseOfALongHandlerIsExtended() throws InterruptedException {
        String channel = channel("lease");
        AtomicInteger calls = new AtomicInteger();
        String id = send(channel, "slow");
        Worker worker = builder(channel, delivery -> {
                    calls.incrementAndGet();
                    Thread.sleep(6_000);
                })
                .lease(Duration.ofSeconds(2))
                .build();
        Thread thread = start(worker);

        waitUntil(() -> isFinished(id));

        worker.stop();
        thread.join();
        equal(1, calls.get());
    }

    static void testDeliveryShowsThatItsLeaseIsLost() throws InterruptedException {
        String channel = channel("lost");
        AtomicBoolean isTold = new AtomicBoolean();
        send(channel, "stolen");
        Worker worker = builder(channel, delivery -> {
                    delivery.ack(); // the worker cannot know, as if another process did it
                    waitUntil(delivery::isLeaseLost);
                    isTold.set(true);
                })
                .lease(Duration.ofSeconds(3))
                .build();
        Thread thread = start(worker);

        waitUntil(isTold::get);

        worker.stop();
        thread.join();
    }

    static void testWorkerLeasesAtMostConcurrencyMessages() throws InterruptedException {
        String channel = channel("most");
        AtomicInteger running = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        CountDownLatch handled = new CountDownLatch(10);
        for (int i = 0; i < 10; i++) {
            send(channel, "" + i);
        }
        Worker worker = builder(channel, delivery -> {
                    most.accumulateAndGet(running.incrementAndGet(), Math::max);
                    Thread.sleep(300);
                    running.decrementAndGet();
                    handled.countDown();
                })
                .concurrency(3)
                .build();
        Thread thread = start(worker);

        isTrue(handled.await(PATIENCE_S, TimeUnit.SECONDS), handled);

        worker.stop();
        thread.join();
        equal(3, most.get());
    }

    static void testStoppedWorkerFinishesRunningHandlers() throws InterruptedException {
        String channel = channel("stopped");
        AtomicInteger taken = new AtomicInteger(-1);
        CountDownLatch began = new CountDownLatch(1);
        Worker worker = builder(channel, delivery -> {
                    began.countDown();
                    Thread.sleep(5_000); // longer than the lease
                    taken.set(HOOKS.receiveBatch(channel, "packing", ReceiveOptions.defaults()).size());
                })
                .lease(Duration.ofSeconds(2))
                .build();
        Thread thread = start(worker);
        String id = send(channel, "held");
        isTrue(began.await(PATIENCE_S, TimeUnit.SECONDS), began);

        worker.stop();
        thread.join();

        isTrue(isFinished(id), id);
        equal(0, taken.get());
    }

    static void testHandlersThatDoNotEndAreInterrupted() throws InterruptedException {
        String channel = channel("endless");
        CountDownLatch began = new CountDownLatch(1);
        CountDownLatch interrupted = new CountDownLatch(1);
        Worker worker = builder(channel, delivery -> {
                    began.countDown();
                    try {
                        Thread.sleep(600_000);
                    } catch (InterruptedException error) {
                        interrupted.countDown();
                        throw error;
                    }
                })
                .shutdownTimeout(Duration.ofMillis(500))
                .build();
        Thread thread = start(worker);
        send(channel, "endless");
        isTrue(began.await(PATIENCE_S, TimeUnit.SECONDS), began);

        worker.stop();

        isTrue(interrupted.await(30, TimeUnit.SECONDS), interrupted);
        thread.join();
    }

    static void testWorkerOfAnUnknownConsumerEndsWithTheError() {
        String channel = channel("unknown");
        Worker worker = Worker.builder(HOOKS, channel, "nobody", delivery -> {}).build();
        HookstationException error = thrown(HookstationException.NotFound.class, worker::run);
        equal("unknown_consumer", error.code());
    }

    static void testReceiveIteratesAndThrowsLeaseLost() {
        String channel = channel("receive");
        List<String> sent = List.of(send(channel, "one"), send(channel, "two"));
        List<String> got = new ArrayList<>();
        for (Delivery delivery : HOOKS.receive(channel, "packing", ReceiveOptions.defaults().max(1))) {
            delivery.ack();
            thrown(
                    HookstationException.LeaseLost.class,
                    () -> delivery.extend(Duration.ofMinutes(1)));
            got.add(delivery.id());
            if (got.size() == 2) {
                break;
            }
        }
        equal(sent, got);
    }

    static void testConditionalMoveNeedsTheVersion() {
        String channel = channel("move");
        Message sent = HOOKS.publish(channel, Outgoing.of("x").deliverIn(Duration.ofHours(1)));
        long version = HOOKS.message(sent.id()).number("version");
        Move move = Move.in(Duration.ofHours(2)).ifVersion(version);
        HOOKS.move(sent.id(), move);
        thrown(HookstationException.Conflict.class, () -> HOOKS.move(sent.id(), move));
    }

    static void testInterruptedWorkerEnds() throws InterruptedException {
        String channel = channel("interrupted");
        AtomicReference<Thread.State> state = new AtomicReference<>();
        Thread thread = start(builder(channel, delivery -> {}).build());
        Thread.sleep(500);
        thread.interrupt();
        thread.join(30_000);
        state.set(thread.getState());
        equal(Thread.State.TERMINATED, state.get());
    }
}
