package dev.hookstation.client;

import java.util.Optional;

/**
 * Stores which messages were handled. Implement your own to commit this together with a handler's
 * effect.
 */
public interface Store {
    /**
     * Claims a message.
     *
     * @param messageId its id
     * @return a claim to settle if the message is new, empty if it was handled
     * @throws RetryException while another thread or process handles the same message
     */
    Optional<Claim> claim(String messageId);

    /** The right to handle one message. */
    interface Claim {
        /** Stores the message as handled. */
        void done();

        /** Removes the claim, so that the message is handled when it is delivered again. */
        void forget();
    }
}
