package dev.hookstation.client;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.UUID;

/**
 * One message to publish: {@code Outgoing.of(order).eventType("order.created")}.
 *
 * <p>Its idempotency key is generated unless {@link #id} sets it, so publishing an object twice
 * stores one message.
 */
public final class Outgoing {
    private final byte[] content;
    private String contentType;
    private String id = UUID.randomUUID().toString();
    private String eventType;
    private String orderingKey;
    private Integer priority;
    private Instant deliverAt;
    private Duration deliverIn;
    private Duration spread;
    private Instant expiresAt;
    private Long producerSeq;
    private final Map<String, String> headers = new LinkedHashMap<>();

    private Outgoing(byte[] content, String contentType) {
        this.content = content;
        this.contentType = contentType;
    }

    /**
     * Creates a message with a body.
     *
     * @param body sent as it is if it is a byte array or a string, else as {@link Json}
     * @return the message
     */
    public static Outgoing of(Object body) {
        if (body instanceof byte[] bytes) {
            return new Outgoing(bytes.clone(), "application/octet-stream");
        }
        if (body instanceof String text) {
            return new Outgoing(text.getBytes(StandardCharsets.UTF_8), "text/plain; charset=utf-8");
        }
        return new Outgoing(Json.write(body).getBytes(StandardCharsets.UTF_8), "application/json");
    }

    /**
     * Sets the content type of the body.
     *
     * @param value such as {@code application/json}
     * @return this message
     */
    public Outgoing contentType(String value) {
        contentType = Objects.requireNonNull(value);
        return this;
    }

    /**
     * Sets the idempotency key: the broker does not store a second message with the same one.
     *
     * @param value such as {@code order-7}
     * @return this message
     */
    public Outgoing id(String value) {
        id = Objects.requireNonNull(value);
        return this;
    }

    /**
     * Sets the event type, by which consumers filter.
     *
     * @param value such as {@code order.created}
     * @return this message
     */
    public Outgoing eventType(String value) {
        eventType = value;
        return this;
    }

    /**
     * Sets the ordering key. Messages with the same key are delivered in order.
     *
     * @param value the key
     * @return this message
     */
    public Outgoing orderingKey(String value) {
        orderingKey = value;
        return this;
    }

    /**
     * Sets the priority.
     *
     * @param value 0 to 9
     * @return this message
     */
    public Outgoing priority(int value) {
        priority = value;
        return this;
    }

    /**
     * Sets the earliest time of delivery.
     *
     * @param value the time
     * @return this message
     */
    public Outgoing deliverAt(Instant value) {
        deliverAt = value;
        return this;
    }

    /**
     * Sets the delay until delivery, by the broker's clock.
     *
     * @param value the time from now
     * @return this message
     */
    public Outgoing deliverIn(Duration value) {
        deliverIn = value;
        return this;
    }

    /**
     * Distributes deliveries over a time.
     *
     * @param value the time
     * @return this message
     */
    public Outgoing spread(Duration value) {
        spread = value;
        return this;
    }

    /**
     * Sets the time after which the message is not delivered any more.
     *
     * @param value the time
     * @return this message
     */
    public Outgoing expiresAt(Instant value) {
        expiresAt = value;
        return this;
    }

    /**
     * Sets a number by which the broker finds gaps in what a producer sends.
     *
     * @param value the number
     * @return this message
     */
    public Outgoing producerSeq(long value) {
        producerSeq = value;
        return this;
    }

    /**
     * Adds a header that is forwarded to the consumers.
     *
     * @param name its name
     * @param value its value
     * @return this message
     */
    public Outgoing header(String name, String value) {
        headers.put(name, value);
        return this;
    }

    byte[] content() {
        return content;
    }

    /** The headers of a single publish (docs/api.md, "Publish"). */
    Map<String, String> asHeaders() {
        Map<String, Object> said = new LinkedHashMap<>();
        Call.put(said, "Content-Type", contentType);
        Call.put(said, "Idempotency-Key", id);
        Call.put(said, "Hookstation-Event-Type", eventType);
        Call.put(said, "Hookstation-Ordering-Key", orderingKey);
        Call.put(said, "Hookstation-Priority", priority);
        Call.put(said, "Hookstation-Deliver-At", deliverAt);
        Call.put(said, "Hookstation-Delay", deliverIn);
        Call.put(said, "Hookstation-Spread", spread);
        Call.put(said, "Hookstation-Expires-At", expiresAt);
        Call.put(said, "Hookstation-Producer-Seq", producerSeq);
        Map<String, String> found = new LinkedHashMap<>();
        said.forEach((name, value) -> found.put(name, value.toString()));
        headers.forEach((name, value) -> found.put("Hookstation-Header-" + name, value));
        return found;
    }

    /** The item of a batch (docs/api.md, "Publish many at once"). */
    Map<String, Object> asItem() {
        Map<String, Object> item = bodyFields();
        Call.put(item, "idempotency_key", id);
        Call.put(item, "event_type", eventType);
        Call.put(item, "ordering_key", orderingKey);
        Call.put(item, "priority", priority);
        Call.put(item, "deliver_at", deliverAt);
        Call.put(item, "delay_ms", deliverIn);
        Call.put(item, "spread_ms", spread);
        Call.put(item, "expires_at", expiresAt);
        Call.put(item, "producer_seq", producerSeq);
        if (!headers.isEmpty()) {
            item.put("headers", headers);
        }
        return item;
    }

    /** {@code body} or {@code body_base64}, and {@code content_type}. */
    Map<String, Object> bodyFields() {
        Map<String, Object> fields = new LinkedHashMap<>();
        try {
            fields.put("body", StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(content)).toString());
        } catch (CharacterCodingException noText) {
            fields.put("body_base64", Base64.getEncoder().encodeToString(content));
        }
        fields.put("content_type", contentType);
        return fields;
    }
}
