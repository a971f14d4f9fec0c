package dev.hookstation.client;

import java.nio.charset.StandardCharsets;

/** Thrown by a handler that can never handle the message: it is dead at once. */
public final class RejectException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /**
     * A rejection.
     *
     * @param reason for people
     */
    public RejectException(String reason) {
        super(reason, null, false, false);
    }

    /** The body as a type; a repeat of one that does not fit would bring the same body. */
    static <T> T unlessFits(byte[] body, Class<T> type) {
        try {
            return Json.read(new String(body, StandardCharsets.UTF_8), type);
        } catch (IllegalArgumentException error) {
            throw new RejectException("The body cannot be used: " + error.getMessage());
        }
    }
}
