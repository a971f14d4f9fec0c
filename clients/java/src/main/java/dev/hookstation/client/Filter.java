package dev.hookstation.client;

import java.time.Instant;

/**
 * Selects messages or deliveries of a list: {@code Filter.all().eventType("order.*")}. The broker
 * refuses conditions that a list does not support.
 *
 * @param state a state from docs/states.md, or null
 * @param outcome the outcome of a delivery's last attempt, or null
 * @param eventType a name or {@code order.*}, or null
 * @param id idempotency key of a message of this producer, or null
 * @param from the first time of acceptance or creation, or null
 * @param to the end of those times, exclusive, or null
 */
public record Filter(
        String state, String outcome, String eventType, String id, Instant from, Instant to) {

    /**
     * A filter that selects everything.
     *
     * @return the filter
     */
    public static Filter all() {
        return new Filter(null, null, null, null, null, null);
    }

    /**
     * A copy with a state.
     *
     * @param value from docs/states.md
     * @return the filter
     */
    public Filter state(String value) {
        return new Filter(value, outcome, eventType, id, from, to);
    }

    /**
     * A copy with an outcome of the last attempt, for deliveries.
     *
     * @param value from docs/states.md
     * @return the filter
     */
    public Filter outcome(String value) {
        return new Filter(state, value, eventType, id, from, to);
    }

    /**
     * A copy with an event type.
     *
     * @param value a name, or {@code order.*}
     * @return the filter
     */
    public Filter eventType(String value) {
        return new Filter(state, outcome, value, id, from, to);
    }

    /**
     * A copy with an idempotency key, for messages.
     *
     * @param value the key
     * @return the filter
     */
    public Filter id(String value) {
        return new Filter(state, outcome, eventType, value, from, to);
    }

    /**
     * A copy with a time range.
     *
     * @param first the first instant
     * @param end the end, exclusive
     * @return the filter
     */
    public Filter between(Instant first, Instant end) {
        return new Filter(state, outcome, eventType, id, first, end);
    }

    Call applyTo(Call call) {
        return call.query("state", state)
                .query("outcome", outcome)
                .query("event_type", eventType)
                .query("idempotency_key", id)
                .query("from", from)
                .query("to", to);
    }
}
