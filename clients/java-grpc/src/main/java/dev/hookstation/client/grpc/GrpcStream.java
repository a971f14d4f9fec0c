package dev.hookstation.client.grpc;

import com.google.protobuf.Timestamp;
import dev.hookstation.client.HookstationException;
import dev.hookstation.client.ReceiveOptions;
import dev.hookstation.client.ReceiveStream;
import dev.hookstation.client.Resource;
import dev.hookstation.client.Settled;
import dev.hookstation.client.Settlement;
import dev.hookstation.client.grpc.v1.Delivery;
import dev.hookstation.client.grpc.v1.LeaseFailure;
import dev.hookstation.client.grpc.v1.ReceiveRequest;
import dev.hookstation.client.grpc.v1.ReceiveResponse;
import dev.hookstation.client.grpc.v1.SettlementResult;
import dev.hookstation.client.grpc.v1.Subscription;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.ClientResponseObserver;
import io.grpc.stub.MetadataUtils;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.BooleanSupplier;

/** A stream of the call Receive. One thread writes, and gRPC's threads read. */
final class GrpcStream implements ReceiveStream {
    private static final System.Logger LOGGER = System.getLogger(GrpcStream.class.getName());
    private static final MethodDescriptor<ReceiveRequest, ReceiveResponse> RECEIVE =
            MethodDescriptor.<ReceiveRequest, ReceiveResponse>newBuilder()
                    .setType(MethodDescriptor.MethodType.BIDI_STREAMING)
                    .setFullMethodName("hookstation.v1.Hookstation/Receive")
                    .setRequestMarshaller(ProtoUtils.marshaller(ReceiveRequest.getDefaultInstance()))
                    .setResponseMarshaller(ProtoUtils.marshaller(ReceiveResponse.getDefaultInstance()))
                    .build();
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    /** Leases of one settlement, a limit of the broker. */
    private static final int MAX_LEASES = 1_000;

    /** Settlements and credits that one request carries. */
    private static final int MAX_MERGED = 1_000;

    private final Listener listener;
    private final BlockingQueue<Queued> outgoing = new LinkedBlockingQueue<>();

    /** Guards the fields below, and is notified of their changes. */
    private final Object lock = new Object();

    /** Not confirmed, whether sent or not. */
    private final Set<Queued.Waiting> unconfirmed = new LinkedHashSet<>();

    /** What was sent, by the id of the settlement. */
    private final Map<Long, List<Queued.Waiting>> sent = new HashMap<>();

    private long lastId;
    private boolean isOpen;
    private boolean isStopping;
    private boolean hasEnded;
    private HookstationException failure;

    private ClientCallStreamObserver<ReceiveRequest> requests;

    GrpcStream(Listener listener) {
        this.listener = listener;
    }

    static Subscription subscription(String channel, String consumer, ReceiveOptions options) {
        Subscription.Builder made = Subscription.newBuilder()
                .setChannel(channel)
                .setConsumer(consumer)
                .setLeaseS(seconds(options.lease()))
                .setSticky(options.sticky())
                .setResume(options.resume())
                .setAutoAck(options.autoAck());
        if (options.workerId() != null) {
            made.setWorkerId(options.workerId());
        }
        return made.build();
    }

    void start(Channel channel, String key, Subscription subscription, int credits) {
        Metadata headers = new Metadata();
        headers.put(AUTHORIZATION, "Bearer " + key);
        Channel withKey =
                ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(headers));
        ClientCalls.asyncBidiStreamingCall(withKey.newCall(RECEIVE, CallOptions.DEFAULT), new Responses());
        requests.onNext(ReceiveRequest.newBuilder()
                .setSubscription(subscription)
                .setCredits(credits)
                .build());
        Thread writer = new Thread(this::write, "hookstation-stream");
        writer.setDaemon(true);
        writer.start();
    }

    @Override
    public void grant(int credits) {
        outgoing.add(new Queued.Credits(credits));
    }

    @Override
    public CompletableFuture<Settled> settle(Settlement settlement) {
        if (settlement.leases().size() > MAX_LEASES) {
            throw new IllegalArgumentException(
                    settlement.leases().size() + " leases at a time; the limit is " + MAX_LEASES + ".");
        }
        Queued.Waiting waiting = new Queued.Waiting(settlement);
        synchronized (lock) {
            unconfirmed.add(waiting);
            if (!hasEnded) {
                outgoing.add(waiting);
                return waiting.result;
            }
        }
        waiting.result.completeExceptionally(unconfirmed());
        return waiting.result;
    }

    @Override
    public boolean isOpen() {
        synchronized (lock) {
            return isOpen;
        }
    }

    @Override
    public boolean isOver() {
        synchronized (lock) {
            return hasEnded || isStopping;
        }
    }

    @Override
    public HookstationException failure() {
        synchronized (lock) {
            return failure;
        }
    }

    @Override
    public List<Settlement> end(Duration timeout) {
        try {
            // First, because a stream may end before its last responses are read.
            await(() -> hasEnded || unconfirmed.isEmpty(), timeout);
            outgoing.add(new Queued.Close());
            await(() -> hasEnded, timeout);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        synchronized (lock) {
            if (!hasEnded) {
                requests.cancel("it did not end in time", null);
            }
            return unconfirmed.stream().map(waiting -> waiting.settlement).toList();
        }
    }

    private void await(BooleanSupplier done, Duration timeout) throws InterruptedException {
        long end = System.nanoTime() + timeout.toNanos();
        synchronized (lock) {
            for (long left = timeout.toMillis(); left > 0 && !done.getAsBoolean(); ) {
                lock.wait(left);
                left = (end - System.nanoTime()) / 1_000_000;
            }
        }
    }

    // -- Requests ----------------------------------------------------------------------------------

    /** Sends what waits, all of it in one request, until the stream is closed or has ended. */
    private void write() {
        List<Queued> items = new ArrayList<>();
        try {
            do {
                items.clear();
                items.add(outgoing.take());
                awaitReady();
                // Whatever was said meanwhile goes along.
                outgoing.drainTo(items, MAX_MERGED - 1);
                ReceiveRequest request = requestOf(items);
                if (request.getCredits() > 0 || request.getSettlementsCount() > 0) {
                    requests.onNext(request);
                }
            } while (items.stream().noneMatch(Queued.Close.class::isInstance));
            requests.onCompleted();
        } catch (InterruptedException error) {
            requests.cancel("interrupted", error);
        } catch (IllegalStateException error) { // the call was cancelled; nothing can be sent
            LOGGER.log(System.Logger.Level.DEBUG, "the stream has ended", error);
        }
    }

    /** Waits while the broker does not read. */
    private void awaitReady() throws InterruptedException {
        synchronized (lock) {
            while (!hasEnded && !requests.isReady()) {
                lock.wait();
            }
        }
    }

    private ReceiveRequest requestOf(List<Queued> items) {
        ReceiveRequest.Builder request = ReceiveRequest.newBuilder();
        for (Queued item : items) {
            if (item instanceof Queued.Credits credits) {
                request.setCredits(request.getCredits() + credits.count());
            }
        }
        for (List<Queued.Waiting> group : Queued.grouped(items, MAX_LEASES)) {
            long id;
            synchronized (lock) {
                id = ++lastId;
                sent.put(id, group);
            }
            request.addSettlements(settlementOf(id, group));
        }
        return request.build();
    }

    private static dev.hookstation.client.grpc.v1.Settlement settlementOf(
            long id, List<Queued.Waiting> group) {
        Settlement first = group.get(0).settlement;
        dev.hookstation.client.grpc.v1.Settlement.Builder made =
                dev.hookstation.client.grpc.v1.Settlement.newBuilder()
                        .setId(id)
                        .setError(first.error())
                        .setFinal(first.isFinal());
        group.forEach(waiting -> made.addAllLeases(waiting.settlement.leases()));
        switch (first.action()) {
            case ACK -> made.setAction(dev.hookstation.client.grpc.v1.Settlement.Action.ACK);
            case NACK -> made.setAction(dev.hookstation.client.grpc.v1.Settlement.Action.NACK);
            case RELEASE -> made.setAction(dev.hookstation.client.grpc.v1.Settlement.Action.RELEASE);
            case EXTEND -> made.setAction(dev.hookstation.client.grpc.v1.Settlement.Action.EXTEND);
        }
        if (first.duration() != null) {
            if (first.action() == Settlement.Action.EXTEND) {
                made.setLeaseS(seconds(first.duration()));
            } else {
                made.setDelayS(seconds(first.duration()));
            }
        }
        return made.build();
    }

    /** Whole seconds, rounded up, as in the REST API. */
    private static double seconds(Duration duration) {
        return -Math.floorDiv(-duration.toMillis(), 1000L);
    }

    // -- Responses ---------------------------------------------------------------------------------

    private final class Responses implements ClientResponseObserver<ReceiveRequest, ReceiveResponse> {
        @Override
        public void beforeStart(ClientCallStreamObserver<ReceiveRequest> stream) {
            requests = stream;
            stream.setOnReadyHandler(GrpcStream.this::wake);
        }

        @Override
        public void onNext(ReceiveResponse response) {
            synchronized (lock) {
                isOpen = true;
            }
            response.getResultsList().forEach(GrpcStream.this::confirm);
            try {
                for (Delivery one : response.getDeliveriesList()) {
                    listener.received(fields(one), one.getBody().toByteArray());
                }
            } catch (RuntimeException error) { // of this client: gRPC ends the call
                LOGGER.log(System.Logger.Level.ERROR, "a message of the stream cannot be taken", error);
                throw error;
            }
            if (response.getStopping()) {
                synchronized (lock) {
                    isStopping = true;
                }
                listener.over();
            }
        }

        @Override
        public void onError(Throwable error) {
            finish(Errors.of(error));
        }

        @Override
        public void onCompleted() {
            finish(null);
        }
    }

    private void wake() {
        synchronized (lock) {
            lock.notifyAll();
        }
    }

    private void confirm(SettlementResult result) {
        List<Queued.Waiting> group;
        synchronized (lock) {
            group = sent.remove(result.getId());
            if (group == null) {
                return;
            }
            group.forEach(unconfirmed::remove);
            lock.notifyAll();
        }
        Map<String, String> failed = new HashMap<>();
        for (LeaseFailure one : result.getFailedList()) {
            failed.put(one.getLease(), one.getError());
        }
        group.forEach(waiting -> waiting.result.complete(settled(waiting.settlement.leases(), failed)));
    }

    private static Settled settled(List<String> leases, Map<String, String> failed) {
        if (failed.isEmpty()) {
            return new Settled(leases, Map.of());
        }
        Map<String, String> mine = new LinkedHashMap<>(failed);
        mine.keySet().retainAll(leases);
        return new Settled(leases.stream().filter(lease -> !mine.containsKey(lease)).toList(), mine);
    }

    private void finish(HookstationException error) {
        List<Queued.Waiting> left;
        synchronized (lock) {
            failure = error;
            hasEnded = true;
            left = List.copyOf(unconfirmed);
            lock.notifyAll();
        }
        outgoing.add(new Queued.Close()); // ends the thread that writes
        listener.over();
        left.forEach(waiting -> waiting.result.completeExceptionally(unconfirmed()));
    }

    private static HookstationException unconfirmed() {
        Resource said = new Resource(Map.of("detail", "the stream ended before it was confirmed"));
        return HookstationException.of(0, said, Duration.ZERO);
    }

    /** The fields of the REST API. */
    private static Resource fields(Delivery found) {
        Map<String, Object> fields = new HashMap<>();
        fields.put("id", found.getId());
        fields.put("delivery_id", found.getDeliveryId());
        fields.put("lease", found.getLease());
        if (!found.getLease().isEmpty()) {
            fields.put("lease_expires_at", text(found.getLeaseExpiresAt()));
        }
        fields.put("attempt", found.getAttempt());
        fields.put("max_attempts", found.getMaxAttempts());
        fields.put("event_type", found.getEventType());
        fields.put("priority", found.getPriority());
        fields.put("ordering_key", found.getOrderingKey());
        fields.put("replay", found.getReplay());
        fields.put("accepted_at", text(found.getAcceptedAt()));
        fields.put("content_type", found.getContentType());
        fields.put("headers", found.getHeadersMap());
        fields.put("body_url", found.getBodyUrl());
        return new Resource(fields);
    }

    private static String text(Timestamp stamp) {
        return Instant.ofEpochSecond(stamp.getSeconds(), stamp.getNanos()).toString();
    }
}
