package dev.hookstation.client;

import java.util.Optional;

/**
 * Remembers which messages were handled. Write your own where the effect of a handler is stored, so
 * that both are committed together.
 */
public interface Store {
    /**
     * Claims a message.
     *
     * @param messageId its id
     * @return a claim to settle where the message is new, empty where it was handled
     * @throws RetryException while another thread or process handles the same message
     */
    Optional<Claim> claim(String messageId);

    /** The right to handle one message. */
    interface Claim {
        /** Remembers the message as handled. */
        void done();

        /** Gives the claim up: the message is handled when it comes again. */
        void forget();
    }
}
