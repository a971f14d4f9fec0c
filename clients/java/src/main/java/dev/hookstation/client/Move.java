package dev.hookstation.client;

import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * What {@link Hookstation#move} changes: {@code Move.in(Duration.ofMinutes(1))}. Null fields stay.
 *
 * @param deliverAt the new time, or null
 * @param deliverIn the same by the broker's clock, zero for now, or null
 * @param priority 0 to 9, or null
 * @param reason for the audit log, or null
 * @param version makes it conditional: a {@code Conflict} unless the message still has it; or null
 */
public record Move(
        Instant deliverAt, Duration deliverIn, Integer priority, String reason, Long version) {

    /**
     * To a time.
     *
     * @param deliverAt the time
     * @return the move
     */
    public static Move to(Instant deliverAt) {
        return new Move(deliverAt, null, null, null, null);
    }

    /**
     * To a time by the broker's clock.
     *
     * @param deliverIn the time from now
     * @return the move
     */
    public static Move in(Duration deliverIn) {
        return new Move(null, deliverIn, null, null, null);
    }

    /**
     * To another priority.
     *
     * @param priority 0 to 9
     * @return the move
     */
    public static Move toPriority(int priority) {
        return new Move(null, null, priority, null, null);
    }

    /**
     * The same with a reason for the audit log.
     *
     * @param value the reason
     * @return the move
     */
    public Move because(String value) {
        return new Move(deliverAt, deliverIn, priority, value, version);
    }

    /**
     * The same if the message still has a version.
     *
     * @param value the version
     * @return the move
     */
    public Move ifVersion(long value) {
        return new Move(deliverAt, deliverIn, priority, reason, value);
    }

    Map<String, Object> asFields() {
        Map<String, Object> said = new LinkedHashMap<>();
        Call.put(said, "due_at", deliverAt);
        Call.put(said, "delay_ms", deliverIn);
        Call.put(said, "priority", priority);
        Call.put(said, "reason", reason);
        return said;
    }
}
