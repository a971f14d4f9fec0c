package dev.hookstation.client;

import java.time.Duration;

/**
 * Thrown by a handler: the message is to come again after some time. A push consumer's retry policy
 * may wait longer; a worker's message comes again after exactly that time.
 */
public final class RetryException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** As {@link #after()} says. */
    private final Duration after;

    /** As {@link #isPause()} says. */
    private final boolean isPause;

    /**
     * A retry.
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
     * A retry that holds back everything for this push consumer meanwhile, up to a minute: for a
     * handler whose own database is down. A worker ignores the pause.
     *
     * @param after the time until then, in whole seconds
     * @param reason for people
     * @return the exception
     */
    public static RetryException pausing(Duration after, String reason) {
        return new RetryException(after, reason, true);
    }

    /**
     * The time until the message comes again.
     *
     * @return the time
     */
    public Duration after() {
        return after;
    }

    /**
     * Whether everything for the consumer is held back meanwhile.
     *
     * @return whether
     */
    public boolean isPause() {
        return isPause;
    }
}
