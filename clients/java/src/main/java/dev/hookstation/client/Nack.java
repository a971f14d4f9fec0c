package dev.hookstation.client;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * A failed attempt: {@code Nack.because("no paper").after(Duration.ofSeconds(5))}.
 *
 * @param delay the time until the retry, in whole seconds; null means the consumer's retry policy
 * @param error for people, or null; its first 300 characters are kept
 * @param isFinal makes it a dead letter at once
 */
public record Nack(Duration delay, String error, boolean isFinal) {
    private static final int MAX_ERROR_LENGTH = 300;

    /**
     * Creates a report of a failed attempt.
     *
     * @param error for people
     * @return the report
     */
    public static Nack because(String error) {
        return new Nack(null, error, false);
    }

    /**
     * A copy with a time until the retry.
     *
     * @param value the time, in whole seconds
     * @return the report
     */
    public Nack after(Duration value) {
        return new Nack(value, error, isFinal);
    }

    /**
     * A copy that makes the message a dead letter at once.
     *
     * @return the report
     */
    public Nack asFinal() {
        return new Nack(delay, error, true);
    }

    Map<String, Object> asFields() {
        Map<String, Object> said = new LinkedHashMap<>();
        if (delay != null) {
            said.put("delay_s", Call.seconds(delay));
        }
        if (!shortError().isEmpty()) {
            said.put("error", shortError());
        }
        if (isFinal) {
            said.put("final", true);
        }
        return said;
    }

    /** The part of the error that the broker keeps, or "". */
    String shortError() {
        if (error == null) {
            return "";
        }
        int length = error.codePointCount(0, error.length());
        return error.substring(0, error.offsetByCodePoints(0, Math.min(length, MAX_ERROR_LENGTH)));
    }
}
