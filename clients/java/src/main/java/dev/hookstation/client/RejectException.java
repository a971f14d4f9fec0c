package dev.hookstation.client;

import java.nio.charset.StandardCharsets;

/** Throw it in a handler that can never handle the message: the delivery is dead at once. */
public final class RejectException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /**
     * Creates a rejection.
     *
     * @param reason for people
     */
    public RejectException(String reason) {
        super(reason, null, false, false);
    }

    /**
     * Converts the body. If it does not fit, rejects the message, because a retry would have the
     * same body.
     */
    static <T> T unlessFits(byte[] body, Class<T> type) {
        try {
            return Json.read(new String(body, StandardCharsets.UTF_8), type);
        } catch (IllegalArgumentException error) {
            throw new RejectException("The body is invalid: " + error.getMessage());
        }
    }
}
