package dev.hookstation.client;

import java.net.http.HttpHeaders;
import java.nio.charset.StandardCharsets;
import java.time.Clock;
import java.time.Duration;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.time.format.DateTimeParseException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A request failed: the broker refused it, or did not respond. Each kind of error is a subclass.
 */
public class HookstationException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** See {@link #code()}. */
    private final String code;

    /** See {@link #status()}. */
    private final int status;

    /** See {@link #detail()}. */
    private final String detail;

    /** See {@link #fields()}; not serialized. */
    private final transient Map<String, String> fields;

    /** See {@link #retryAfter()}. */
    private final Duration retryAfter;

    HookstationException(Problem problem, Throwable cause) {
        super(problem.message(), cause);
        this.code = problem.code;
        this.status = problem.status;
        this.detail = problem.detail;
        this.fields = problem.fields;
        this.retryAfter = problem.retryAfter;
    }

    /**
     * The broker's stable name of the error (docs/api.md, "Errors"). Without a response it is
     * {@code not_sent} if the request was not sent, and {@code no_response} otherwise.
     *
     * @return the code
     */
    public String code() {
        return code;
    }

    /**
     * The HTTP status.
     *
     * @return the status, 0 without a response
     */
    public int status() {
        return status;
    }

    /**
     * A sentence for people.
     *
     * @return the sentence
     */
    public String detail() {
        return detail;
    }

    /**
     * The invalid fields or headers, each with what is wrong with it.
     *
     * @return the errors by field
     */
    public Map<String, String> fields() {
        return fields == null ? Map.of() : fields;
    }

    /**
     * The wait that the broker requests before the next try.
     *
     * @return the time, or zero
     */
    public Duration retryAfter() {
        return retryAfter;
    }

    /** The request is invalid (400, 405, 411, 413, 415, 422). */
    public static final class BadRequest extends HookstationException {
        private static final long serialVersionUID = 1L;

        BadRequest(Problem problem) {
            super(problem, null);
        }
    }

    /** The API key is missing or invalid (401). */
    public static final class Unauthorized extends HookstationException {
        private static final long serialVersionUID = 1L;

        Unauthorized(Problem problem) {
            super(problem, null);
        }
    }

    /** The API key does not permit this (403). */
    public static final class Forbidden extends HookstationException {
        private static final long serialVersionUID = 1L;

        Forbidden(Problem problem) {
            super(problem, null);
        }
    }

    /** The object does not exist, or the API key may not see it (404). */
    public static final class NotFound extends HookstationException {
        private static final long serialVersionUID = 1L;

        NotFound(Problem problem) {
            super(problem, null);
        }
    }

    /** The object's state does not allow it, or the object was changed meanwhile (409, 412). */
    public static class Conflict extends HookstationException {
        private static final long serialVersionUID = 1L;

        Conflict(Problem problem) {
            super(problem, null);
        }
    }

    /** The lease ended before the call; another worker may have received the message. */
    public static final class LeaseLost extends Conflict {
        private static final long serialVersionUID = 1L;

        LeaseLost(String messageId, String reason) {
            super(new Problem(
                    reason,
                    200,
                    "The lease of " + messageId + " cannot be used: " + reason + ".",
                    Map.of(),
                    Duration.ZERO));
        }
    }

    /** A rate limit or quota is exceeded (429), even after retries. */
    public static final class RateLimited extends HookstationException {
        private static final long serialVersionUID = 1L;

        RateLimited(Problem problem) {
            super(problem, null);
        }
    }

    /** The broker cannot do it now (5xx), even after retries. */
    public static final class Unavailable extends HookstationException {
        private static final long serialVersionUID = 1L;

        Unavailable(Problem problem) {
            super(problem, null);
        }
    }

    /** There was no response, even after retries; or the thread was interrupted. */
    public static final class ConnectionFailed extends HookstationException {
        private static final long serialVersionUID = 1L;

        ConnectionFailed(String code, String detail, Throwable cause) {
            super(new Problem(code, 0, detail, Map.of(), Duration.ZERO), cause);
        }
    }

    /** The error for a response: an RFC 9457 problem, or any response of a proxy. */
    record Problem(
            String code, int status, String detail, Map<String, String> fields, Duration retryAfter) {

        String message() {
            StringBuilder message = new StringBuilder(code);
            // The detail names the fields only if several are invalid.
            String field = fields.size() == 1 ? fields.keySet().iterator().next() : "";
            for (String part : List.of(field, detail)) {
                if (!part.isEmpty()) {
                    message.append(message.isEmpty() ? "" : ": ").append(part);
                }
            }
            return message.toString();
        }
    }

    static HookstationException of(int status, HttpHeaders headers, byte[] content, Clock clock) {
        Resource said;
        try {
            said = Resource.of(Json.read(new String(content, StandardCharsets.UTF_8)));
        } catch (IllegalArgumentException error) {
            said = new Resource(Map.of());
        }
        Duration wait = headers.firstValue("Retry-After")
                .map(value -> parseRetryAfter(value, clock))
                .orElse(Duration.ZERO);
        return of(status, said, wait);
    }

    /**
     * The exception for an error of the broker that came in another way than as a response of the
     * REST API.
     *
     * @param status the HTTP status of the same error; 0 if the broker did not respond
     * @param said the fields of the error: {@code code}, {@code detail}, and {@code field} or {@code
     *     errors}
     * @param retryAfter the wait that the broker requests before the next try, or zero
     * @return an instance of the class for this status
     */
    public static HookstationException of(int status, Resource said, Duration retryAfter) {
        if (status == 0) {
            return new ConnectionFailed("no_response", said.text("detail"), null);
        }
        Map<String, String> fields = new LinkedHashMap<>();
        List<Resource> faults = said.list("errors");
        for (Resource fault : faults.isEmpty() ? List.of(said) : faults) {
            if (!fault.text("field").isEmpty()) {
                fields.put(fault.text("field"), fault.text("detail"));
            }
        }
        String detail = said.text("detail").isEmpty() ? "HTTP status " + status : said.text("detail");
        Problem problem = new Problem(said.text("code"), status, detail, Map.copyOf(fields), retryAfter);
        switch (status) {
            case 401:
                return new Unauthorized(problem);
            case 403:
                return new Forbidden(problem);
            case 404:
                return new NotFound(problem);
            case 409, 412:
                return new Conflict(problem);
            case 429:
                return new RateLimited(problem);
            default:
                return status >= 500 ? new Unavailable(problem) : new BadRequest(problem);
        }
    }

    /** Reads a number of seconds or a date (RFC 9110, 10.2.3); zero for anything else. */
    static Duration parseRetryAfter(String value, Clock clock) {
        try {
            double seconds = Math.max(0, Double.parseDouble(value));
            return Duration.ofMillis((long) Math.min(seconds * 1000, 1e12));
        } catch (NumberFormatException notSeconds) {
            try {
                ZonedDateTime date = ZonedDateTime.parse(value, DateTimeFormatter.RFC_1123_DATE_TIME);
                Duration wait = Duration.between(clock.instant(), date.toInstant());
                return wait.isNegative() ? Duration.ZERO : wait;
            } catch (DateTimeParseException noDate) {
                return Duration.ZERO;
            }
        }
    }
}
