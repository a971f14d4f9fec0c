package dev.hookstation.client;

import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The changes of {@link Hookstation#move}: {@code Move.in(Duration.ofMinutes(1))}. Null fields do
 * not change.
 *
 * @param deliverAt the new time, or null
 * @param deliverIn the delay until then by the broker's clock, zero for now, or null
 * @param priority 0 to 9, or null
 * @param reason for the audit log, or null
 * @param version makes the call conditional: a {@code Conflict} if the message has another version;
 *     or null
 */
public record Move(
        Instant deliverAt, Duration deliverIn, Integer priority, String reason, Long version) {

    /**
     * Moves to a time.
     *
     * @param deliverAt the time
     * @return the move
     */
    public static Move to(Instant deliverAt) {
        return new Move(deliverAt, null, null, null, null);
    }

    /**
     * Moves to a time by the broker's clock.
     *
     * @param deliverIn the time from now
     * @return the move
     */
    public static Move in(Duration deliverIn) {
        return new Move(null, deliverIn, null, null, null);
    }

    /**
     * Changes the priority.
     *
     * @param priority 0 to 9
     * @return the move
     */
    public static Move toPriority(int priority) {
        return new Move(null, null, priority, null, null);
    }

    /**
     * A copy with a reason for the audit log.
     *
     * @param value the reason
     * @return the move
     */
    public Move because(String value) {
        return new Move(deliverAt, deliverIn, priority, value, version);
    }

    /**
     * A copy that applies only if the message has this version.
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
