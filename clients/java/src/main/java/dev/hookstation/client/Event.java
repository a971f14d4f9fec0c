package dev.hookstation.client;

import java.time.DateTimeException;
import java.time.Instant;
import java.util.Collections;
import java.util.Map;
import java.util.TreeMap;

/** A message as the broker delivered it to a push consumer. */
public final class Event {
    private final Map<String, String> headers;
    private final byte[] body;

    Event(Map<String, String> headers, byte[] body) {
        Map<String, String> found = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
        found.putAll(headers);
        this.headers = Collections.unmodifiableMap(found);
        this.body = body;
    }

    /**
     * The id of the message, the same in every attempt and replay.
     *
     * @return the id
     */
    public String id() {
        return text("webhook-id");
    }

    /**
     * The event type.
     *
     * @return the type, or ""
     */
    public String eventType() {
        return text("Hookstation-Event-Type");
    }

    /**
     * The channel that the message was published to.
     *
     * @return the channel
     */
    public String channel() {
        return text("Hookstation-Channel");
    }

    /**
     * The consumer that it was delivered to.
     *
     * @return the consumer
     */
    public String consumer() {
        return text("Hookstation-Consumer");
    }

    /**
     * The number of this attempt.
     *
     * @return 1 for the first
     */
    public int attempt() {
        return number("Hookstation-Attempt", 1);
    }

    /**
     * The number of failed attempts after which the delivery is dead.
     *
     * @return the number
     */
    public int maxAttempts() {
        return number("Hookstation-Max-Attempts", 1);
    }

    /**
     * The priority.
     *
     * @return 0 to 9
     */
    public int priority() {
        return number("Hookstation-Priority", 4);
    }

    /**
     * The ordering key.
     *
     * @return the key, or ""
     */
    public String orderingKey() {
        return text("Hookstation-Ordering-Key");
    }

    /**
     * The time at which the broker stored the message.
     *
     * @return the time, or null if the header is missing
     */
    public Instant acceptedAt() {
        try {
            return Instant.parse(text("Hookstation-Accepted-At"));
        } catch (DateTimeException error) {
            return null;
        }
    }

    /**
     * Whether this is a replay.
     *
     * @return whether
     */
    public boolean isReplay() {
        return text("Hookstation-Replay").equals("true");
    }

    /**
     * Whether this is a test sample of the broker.
     *
     * @return whether
     */
    public boolean isTest() {
        return text("Hookstation-Test").equals("true");
    }

    /**
     * The URL for a later acknowledgement.
     *
     * @return the URL; "" unless the consumer has {@code ack} on
     */
    public String ackUrl() {
        return text("Hookstation-Ack-URL");
    }

    /**
     * All headers of the request; names are not case-sensitive.
     *
     * @return the headers
     */
    public Map<String, String> headers() {
        return headers;
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
     * @throws RejectException if the body does not fit; then the delivery is dead at once
     */
    public <T> T as(Class<T> type) {
        return RejectException.unlessFits(body, type);
    }

    private String text(String header) {
        return headers.getOrDefault(header, "");
    }

    private int number(String header, int otherwise) {
        try {
            return Integer.parseInt(text(header));
        } catch (NumberFormatException error) {
            return otherwise;
        }
    }
}
