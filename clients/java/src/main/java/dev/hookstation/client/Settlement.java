package dev.hookstation.client;

import java.time.Duration;
import java.util.List;

/**
 * What shall happen with the messages of some leases: {@code Settlement.ack(leases)}.
 *
 * @param action what to do
 * @param leases their leases
 * @param duration the time from now, in whole seconds: until the messages can be received again
 *     ({@code NACK}, {@code RELEASE}; null means the consumer's retry policy) or until the leases
 *     end ({@code EXTEND})
 * @param error of a {@code NACK}, for people: what failed, or ""
 * @param isFinal of a {@code NACK}: makes the messages dead letters at once
 */
public record Settlement(
        Action action, List<String> leases, Duration duration, String error, boolean isFinal) {

    /** What to do with messages. */
    public enum Action {
        /** They are handled. */
        ACK,
        /** Handling failed, which is a failed attempt. */
        NACK,
        /** They are given back unhandled. */
        RELEASE,
        /** Handling goes on. */
        EXTEND
    }

    /**
     * Creates a settlement.
     *
     * @param action what to do
     * @param leases their leases
     * @param duration see the record
     * @param error see the record
     * @param isFinal see the record
     */
    public Settlement {
        leases = List.copyOf(leases);
    }

    /**
     * Acknowledges messages.
     *
     * @param leases their leases
     * @return the settlement
     */
    public static Settlement ack(List<String> leases) {
        return new Settlement(Action.ACK, leases, null, "", false);
    }

    /**
     * Reports failed attempts.
     *
     * @param nack how they failed
     * @param leases their leases
     * @return the settlement
     */
    public static Settlement nack(Nack nack, List<String> leases) {
        return new Settlement(Action.NACK, leases, nack.delay(), nack.shortError(), nack.isFinal());
    }

    /**
     * Gives messages back without counting a failure.
     *
     * @param delay the time until they are due again; zero is at once
     * @param leases their leases
     * @return the settlement
     */
    public static Settlement release(Duration delay, List<String> leases) {
        return new Settlement(Action.RELEASE, leases, delay, "", false);
    }

    /**
     * Extends leases.
     *
     * @param lease the time from now until they end
     * @param leases the leases
     * @return the settlement
     */
    public static Settlement extend(Duration lease, List<String> leases) {
        return new Settlement(Action.EXTEND, leases, lease, "", false);
    }

    /**
     * Whether this differs from another settlement only in its leases, so that one can stand for
     * both.
     *
     * @param other another settlement
     * @return whether
     */
    public boolean isLike(Settlement other) {
        return equals(new Settlement(other.action, leases, other.duration, other.error, other.isFinal));
    }

    /** Settles up to 100 leases over the REST API. */
    Settled over(Hookstation client) {
        String[] some = leases.toArray(String[]::new);
        return switch (action) {
            case ACK -> client.ack(some);
            case NACK -> client.nack(new Nack(duration, error, isFinal), some);
            case RELEASE -> client.release(duration, some);
            case EXTEND -> client.extend(duration, some);
        };
    }
}
