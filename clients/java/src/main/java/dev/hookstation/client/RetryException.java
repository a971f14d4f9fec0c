package dev.hookstation.client;

import java.time.Duration;

/**
 * Throw it in a handler to have the message delivered again after some time. A push consumer's
 * retry policy may set a longer time; a worker receives the message again after exactly that time.
 */
public final class RetryException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** See {@link #after()}. */
    private final Duration after;

    /** See {@link #isPause()}. */
    private final boolean isPause;

    /**
     * Creates a retry.
     *
     * @param after the time until then, in whole seconds
     * @param reason for people
     */
    public RetryException(Duration after, String reason) {
        this(after, reason, false);
    }

    private RetryException(Duration after, String reason, boolean isPause) {
        super(reason, null, false, false);
        this.after = after;
        this.isPause = isPause;
    }

    /**
     * Creates a retry that also makes the broker send this push consumer nothing else until then,
     * for up to a minute: use it if the handler's own database is down. A worker ignores the pause.
     *
     * @param after the time until then, in whole seconds
     * @param reason for people
     * @return the exception
     */
    public static RetryException pausing(Duration after, String reason) {
        return new RetryException(after, reason, true);
    }

    /**
     * The time until the message is delivered again.
     *
     * @return the time
     */
    public Duration after() {
        return after;
    }

    /**
     * Whether the broker sends the consumer nothing else until then.
     *
     * @return true if the consumer is paused
     */
    public boolean isPause() {
        return isPause;
    }
}
