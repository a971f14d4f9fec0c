package dev.hookstation.client;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * A message that a pull consumer received. {@link #ack}, {@link #nack}, {@link #extend} and {@link
 * #release} throw {@link HookstationException.LeaseLost} if the lease has ended, so that another
 * worker may have received the message.
 */
public final class Delivery {
    private final Hookstation client;
    private final Resource found;
    private final Map<String, String> headers = new LinkedHashMap<>();
    private final byte[] body;
    private volatile boolean isLost;

    Delivery(Hookstation client, Resource found) {
        this(client, found, null);
    }

    /** A message whose body came apart from its fields, unless that is null. */
    Delivery(Hookstation client, Resource found, byte[] content) {
        this.client = client;
        this.found = found;
        if (found.fields().get("headers") instanceof Map<?, ?> said) {
            said.forEach((name, value) -> headers.put(name.toString(), String.valueOf(value)));
        }
        if (!found.text("body_url").isEmpty()) {
            // The body is too large for the response.
            body = client.body(id());
        } else if (content != null) {
            body = content;
        } else if (found.fields().get("body_base64") instanceof String encoded) {
            body = Base64.getDecoder().decode(encoded);
        } else {
            body = found.text("body").getBytes(StandardCharsets.UTF_8);
        }
    }

    /**
     * The id of the message, the same each time it is received. Deduplicate by it.
     *
     * @return the id
     */
    public String id() {
        return found.text("id");
    }

    /**
     * The id of the delivery to this consumer.
     *
     * @return the id
     */
    public String deliveryId() {
        return found.text("delivery_id");
    }

    /**
     * Identifies the lease in {@link Hookstation#ack} and the other calls.
     *
     * @return the lease, empty with auto-ack
     */
    public String lease() {
        return found.text("lease");
    }

    /**
     * The time at which the lease ends unless it is extended.
     *
     * @return the time, or null with auto-ack
     */
    public Instant leaseExpiresAt() {
        return instant(found, "lease_expires_at");
    }

    /**
     * The number of this attempt.
     *
     * @return 1 for the first
     */
    public int attempt() {
        return (int) found.number("attempt");
    }

    /**
     * The number of failed attempts after which the delivery is dead.
     *
     * @return the number
     */
    public int maxAttempts() {
        return (int) found.number("max_attempts");
    }

    /**
     * The event type.
     *
     * @return the type, or ""
     */
    public String eventType() {
        return found.text("event_type");
    }

    /**
     * The priority.
     *
     * @return 0 to 9
     */
    public int priority() {
        return (int) found.number("priority");
    }

    /**
     * The ordering key.
     *
     * @return the key, or ""
     */
    public String orderingKey() {
        return found.text("ordering_key");
    }

    /**
     * Whether this is a replay.
     *
     * @return whether
     */
    public boolean isReplay() {
        return Boolean.TRUE.equals(found.fields().get("replay"));
    }

    /**
     * The time at which the broker stored the message.
     *
     * @return the time
     */
    public Instant acceptedAt() {
        return instant(found, "accepted_at");
    }

    /**
     * The content type of the body.
     *
     * @return the type
     */
    public String contentType() {
        return found.text("content_type");
    }

    /**
     * The headers that the producer set.
     *
     * @return the headers
     */
    public Map<String, String> headers() {
        return Map.copyOf(headers);
    }

    /**
     * The exact bytes of the body.
     *
     * @return the bytes
     */
    public byte[] body() {
        return body.clone();
    }

    /**
     * The body as a record, or as a type that {@link Json} reads.
     *
     * @param <T> the type
     * @param type its class
     * @return the value
     * @throws RejectException if the body does not fit; if a handler throws it, the message is a
     *     dead letter
     */
    public <T> T as(Class<T> type) {
        return RejectException.unlessFits(body, type);
    }

    /** Acknowledges the message: it is delivered. */
    public void ack() {
        check(client.ack(lease()));
    }

    /**
     * Reports a failed attempt.
     *
     * @param nack how it failed
     */
    public void nack(Nack nack) {
        check(client.nack(nack, lease()));
    }

    /**
     * Extends the lease.
     *
     * @param lease the time from now until it ends, in whole seconds
     */
    public void extend(Duration lease) {
        check(client.extend(lease, lease()));
    }

    /** Returns the message without counting a failure, to be received again at once. */
    public void release() {
        check(client.release(Duration.ZERO, lease()));
    }

    /**
     * Whether a {@link Worker} failed to extend the lease, so that another worker may have received
     * the message.
     *
     * @return whether
     */
    public boolean isLeaseLost() {
        return isLost;
    }

    void markLost() {
        isLost = true;
    }

    private void check(Settled settled) {
        String reason = settled.failed().get(lease());
        if (reason != null) {
            throw new HookstationException.LeaseLost(id(), reason);
        }
    }

    static Instant instant(Resource found, String field) {
        return found.text(field).isEmpty() ? null : Instant.parse(found.text(field));
    }
}
