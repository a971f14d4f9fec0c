package dev.hookstation.client;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;

/**
 * Plays conformance scenarios with the client: one JSON object per line in, one per line out. The
 * protocol is in docs/clients/README.md. With HOOKSTATION_GRPC_URL it receives and settles over
 * streams.
 */
public final class Driver {
    private static final Hookstation HOOKS = Hookstation.fromEnvironment();
    private static final DriverStreams STREAMS = HOOKS.grpc().isEmpty()
            ? null
            : new DriverStreams(Streams.connect(HOOKS.grpc()).orElseThrow(), HOOKS.key());
    private static final Map<String, Operation> OPERATIONS = new TreeMap<>();

    /** One operation of the protocol. */
    private interface Operation {
        Object run(Resource request) throws SignatureException;
    }

    static {
        OPERATIONS.put("now", r -> Instant.now().toEpochMilli() / 1000.0);
        OPERATIONS.put("create_channel", r -> HOOKS.createChannel(r.text("channel"), settings(r)).fields());
        OPERATIONS.put(
                "register",
                r -> HOOKS.register(r.text("channel"), r.text("consumer"), settings(r)).fields());
        OPERATIONS.put("publish", Driver::publish);
        OPERATIONS.put("publish_batch", Driver::publishBatch);
        OPERATIONS.put("list_messages", r -> ids(HOOKS.messages(r.text("channel"), Filter.all()), "id"));
        OPERATIONS.put("message", r -> HOOKS.message(r.text("id")).fields());
        OPERATIONS.put("move", Driver::move);
        OPERATIONS.put("cancel", r -> HOOKS.cancel(r.text("id")).fields());
        OPERATIONS.put("receive", Driver::receive);
        OPERATIONS.put("ack", r -> settled(Settlement.ack(leases(r))));
        OPERATIONS.put("nack", Driver::nack);
        OPERATIONS.put("extend", r -> settled(Settlement.extend(duration(r, "seconds"), leases(r))));
        OPERATIONS.put("release", r -> settled(Settlement.release(duration(r, "delay"), leases(r))));
        OPERATIONS.put(
                "dead_letters",
                r -> ids(
                        HOOKS.deadLetters(r.text("channel"), r.text("consumer"), Filter.all()),
                        "message_id"));
        OPERATIONS.put("replay_delivery", r -> HOOKS.replayDelivery(r.text("id"), "").fields());
        OPERATIONS.put("put_schedule", r -> schedules(r).put(r.text("schedule"), settings(r)).fields());
        OPERATIONS.put("get_schedule", r -> schedules(r).get(r.text("schedule")).fields());
        OPERATIONS.put("delete_schedule", r -> {
            schedules(r).delete(r.text("schedule"));
            return Map.of();
        });
        OPERATIONS.put("verify", Driver::verify);
    }

    private Driver() {}

    public static void main(String[] arguments) throws IOException {
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            out.print(Json.write(answer(Resource.of(Json.read(line)))) + "\n");
            out.flush();
        }
    }

    private static Map<String, Object> answer(Resource request) {
        String name = request.text("op");
        if (name.equals("hello")) {
            return Map.of("ok", Map.of("client", "java", "ops", OPERATIONS.keySet()));
        }
        try {
            return Map.of("ok", OPERATIONS.get(name).run(request));
        } catch (HookstationException error) {
            return Map.of("error", Map.of(
                    "code", error.code(),
                    "status", error.status(),
                    "detail", error.detail(),
                    "fields", new TreeSet<>(error.fields().keySet())));
        } catch (SignatureException error) {
            return Map.of(
                    "error", Map.of("code", "bad_signature", "status", 0, "detail", error.getMessage()));
        }
    }

    private static Object publish(Resource r) {
        Object encoded = r.fields().get("body_base64");
        Object body = encoded == null ? r.text("body") : Base64.getDecoder().decode((String) encoded);
        Outgoing message = outgoing(r, body)
                .contentType(r.text("content_type").isEmpty() ? "application/json" : r.text("content_type"));
        if (!r.text("event_type").isEmpty()) {
            message.eventType(r.text("event_type"));
        }
        if (!r.text("ordering_key").isEmpty()) {
            message.orderingKey(r.text("ordering_key"));
        }
        if (r.fields().containsKey("deliver_in")) {
            message.deliverIn(duration(r, "deliver_in"));
        }
        if (r.fields().get("headers") instanceof Map<?, ?> headers) {
            headers.forEach((name, value) -> message.header((String) name, (String) value));
        }
        return published(HOOKS.publish(r.text("channel"), message));
    }

    private static Object publishBatch(Resource r) {
        List<Outgoing> messages = new ArrayList<>();
        for (Resource one : r.list("messages")) {
            messages.add(outgoing(one, one.text("body")));
        }
        List<Object> results = new ArrayList<>();
        for (BatchResult result : HOOKS.publishBatch(r.text("channel"), messages)) {
            results.add(result.error()
                    .<Object>map(error -> Map.of("error", error.code()))
                    .orElseGet(() -> published(result.message().orElseThrow())));
        }
        return Map.of("results", results);
    }

    private static Outgoing outgoing(Resource r, Object body) {
        Outgoing message = Outgoing.of(body);
        if (!r.text("id").isEmpty()) {
            message.id(r.text("id"));
        }
        if (r.fields().containsKey("priority")) {
            message.priority((int) r.number("priority"));
        }
        return message;
    }

    private static Map<String, Object> published(Message sent) {
        return Map.of("id", sent.id(), "duplicate", sent.isDuplicate());
    }

    private static Object move(Resource r) {
        Move move = r.fields().containsKey("priority")
                ? Move.toPriority((int) r.number("priority"))
                : Move.in(duration(r, "deliver_in"));
        return HOOKS.move(r.text("id"), move).fields();
    }

    private static Object receive(Resource r) {
        ReceiveOptions options = ReceiveOptions.defaults()
                .waitFor(duration(r, "wait"))
                .resume(Boolean.TRUE.equals(r.fields().get("resume")));
        if (r.fields().containsKey("max")) {
            options = options.max((int) r.number("max"));
        }
        if (r.fields().containsKey("lease")) {
            options = options.lease(duration(r, "lease"));
        }
        if (!r.text("worker_id").isEmpty()) {
            options = options.workerId(r.text("worker_id"));
        }
        List<Object> messages = new ArrayList<>();
        for (Delivery one : receive(r.text("channel"), r.text("consumer"), options)) {
            Map<String, Object> shown = new LinkedHashMap<>();
            shown.put("id", one.id());
            shown.put("lease", one.lease());
            shown.put("attempt", one.attempt());
            shown.put("event_type", one.eventType());
            shown.put("ordering_key", one.orderingKey());
            shown.put("priority", one.priority());
            shown.put("headers", one.headers());
            shown.put("content_type", one.contentType());
            shown.put("body_base64", Base64.getEncoder().encodeToString(one.body()));
            messages.add(shown);
        }
        return Map.of("messages", messages);
    }

    private static List<Delivery> receive(String channel, String consumer, ReceiveOptions options) {
        return STREAMS == null
                ? HOOKS.receiveBatch(channel, consumer, options)
                : STREAMS.receive(HOOKS, channel, consumer, options);
    }

    private static List<String> leases(Resource r) {
        return List.of(r.text("lease"));
    }

    private static Object nack(Resource r) {
        Nack nack = Nack.because(r.text("error"));
        if (r.fields().containsKey("delay")) {
            nack = nack.after(duration(r, "delay"));
        }
        return settled(Settlement.nack(nack, leases(r)));
    }

    private static Object verify(Resource r) throws SignatureException {
        Map<String, String> headers = new LinkedHashMap<>();
        ((Map<?, ?>) r.fields().get("headers"))
                .forEach((name, value) -> headers.put((String) name, (String) value));
        byte[] body = Base64.getDecoder().decode(r.text("body_base64"));
        return Map.of("id", Webhooks.verify(r.text("secret"), headers, body));
    }

    private static Object settled(Settlement settlement) {
        boolean isOverRest = STREAMS == null || STREAMS.isNew();
        Settled settled = isOverRest ? settlement.over(HOOKS) : STREAMS.settle(settlement);
        for (String reason : settled.failed().values()) {
            throw new HookstationException.LeaseLost("the message", reason);
        }
        return Map.of();
    }

    private static Object ids(Pages items, String field) {
        return Map.of("ids", items.stream().map(item -> item.text(field)).toList());
    }

    private static Schedules schedules(Resource r) {
        return HOOKS.schedules(r.text("channel"));
    }

    private static Map<String, Object> settings(Resource r) {
        return Resource.of(r.fields().get("settings")).fields();
    }

    private static Duration duration(Resource r, String field) {
        Object seconds = r.fields().getOrDefault(field, 0L);
        return Duration.ofMillis(Math.round(((Number) seconds).doubleValue() * 1000));
    }
}
