package dev.hookstation.client;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * One stream of one worker: the broker sends as many messages as it was granted credits, and
 * settlements flow the other way. Thread-safe.
 */
public interface ReceiveStream {
    /** Gets the messages of a stream. */
    interface Listener {
        /**
         * Called for each message, one after the other. The stream reads on when it returns, so that
         * a slow listener holds the broker back.
         *
         * @param message the fields of the REST API. With a {@code body_url} the body was too large:
         *     get it with {@link Hookstation#body}.
         * @param body the bytes of the body
         */
        void received(Resource message, byte[] body);

        /** Called when {@link ReceiveStream#isOver} has become true. */
        default void over() {}
    }

    /**
     * Lets the broker send more messages.
     *
     * @param credits how many
     */
    void grant(int credits);

    /**
     * Settles or extends leases, soon. Settlements that are made at the same time leave in one
     * request.
     *
     * @param settlement what to do with which leases
     * @return completed when the broker has stored it, with the leases that failed. If the stream
     *     ends first, it completes exceptionally with a {@link
     *     HookstationException.ConnectionFailed}, and {@link #end} returns the settlement.
     */
    CompletableFuture<Settled> settle(Settlement settlement);

    /**
     * Whether the broker has accepted the stream.
     *
     * @return whether
     */
    boolean isOpen();

    /**
     * Whether no more messages come: the stream has ended, or the broker stops.
     *
     * @return whether
     */
    boolean isOver();

    /**
     * The error that ended the stream.
     *
     * @return the error; null while the stream is open, and if it was ended without one
     */
    HookstationException failure();

    /**
     * Closes the client's side after what is left was sent, and waits for the end of the stream.
     *
     * @param timeout how long to wait for the last confirmations, and again for the end; then the
     *     stream is cancelled
     * @return what the broker has not confirmed: settle it over the REST API
     */
    List<Settlement> end(Duration timeout);
}
