package dev.hookstation.client;

import java.time.Instant;

/**
 * Chooses messages or deliveries of a list: {@code Filter.all().eventType("order.*")}. What a list
 * does not know is refused by the broker.
 *
 * @param state one of docs/states.md, or null
 * @param outcome of the last attempt of a delivery, or null
 * @param eventType a name or {@code order.*}, or null
 * @param id idempotency key of a message of this producer, or null
 * @param from the first time of acceptance or creation, or null
 * @param to the end of those times, exclusive, or null
 */
public record Filter(
        String state, String outcome, String eventType, String id, Instant from, Instant to) {

    /**
     * A filter that chooses everything.
     *
     * @return the filter
     */
    public static Filter all() {
        return new Filter(null, null, null, null, null, null);
    }

    /**
     * The same with a state.
     *
     * @param value one of docs/states.md
     * @return the filter
     */
    public Filter state(String value) {
        return new Filter(value, outcome, eventType, id, from, to);
    }

    /**
     * The same with an outcome of the last attempt, for deliveries.
     *
     * @param value one of docs/states.md
     * @return the filter
     */
    public Filter outcome(String value) {
        return new Filter(state, value, eventType, id, from, to);
    }

    /**
     * The same with an event type.
     *
     * @param value a name, or {@code order.*}
     * @return the filter
     */
    public Filter eventType(String value) {
        return new Filter(state, outcome, value, id, from, to);
    }

    /**
     * The same with an idempotency key, for messages.
     *
     * @param value the key
     * @return the filter
     */
    public Filter id(String value) {
        return new Filter(state, outcome, eventType, value, from, to);
    }

    /**
     * The same with a time.
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
