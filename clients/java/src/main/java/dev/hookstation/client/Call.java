package dev.hookstation.client;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.StringJoiner;

/** One request of the API, and whether it may be retried. */
final class Call {
    final String method;
    final String path;
    final Map<String, String> headers = new LinkedHashMap<>();
    byte[] body = new byte[0];

    /** Whether the call is not idempotent. */
    boolean isOnce;

    /** How long the broker may delay the response (long poll). */
    Duration wait = Duration.ZERO;

    private final StringJoiner query = new StringJoiner("&", "?", "").setEmptyValue("");

    Call(String method, String path) {
        this.method = method;
        this.path = path;
    }

    static Call get(String... parts) {
        return new Call("GET", pathOf(parts));
    }

    Call query(String name, Object value) {
        if (value != null && !value.toString().isEmpty()) {
            query.add(name + "=" + encode(value.toString()));
        }
        return this;
    }

    Call json(Object value) {
        headers.put("Content-Type", "application/json");
        body = Json.write(value).getBytes(StandardCharsets.UTF_8);
        return this;
    }

    /** Makes the call conditional on a version of the object; null means no condition. */
    Call ifMatch(Long version) {
        if (version != null) {
            headers.put("If-Match", "\"" + version + "\"");
            // If the change took effect, a retry would conflict with the new version.
            isOnce = true;
        }
        return this;
    }

    Call once() {
        isOnce = true;
        return this;
    }

    String target() {
        return path + query;
    }

    static String pathOf(String... parts) {
        StringJoiner path = new StringJoiner("/", "/api/v1/", "");
        for (String part : parts) {
            path.add(encode(part));
        }
        return path.toString();
    }

    private static String encode(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }

    /** Puts a value that is not null; formats instants and durations for the API. */
    static void put(Map<String, Object> into, String name, Object value) {
        if (value instanceof Duration duration) {
            into.put(name, duration.toMillis());
        } else if (value instanceof Instant instant) {
            into.put(name, instant.toString());
        } else if (value != null) {
            into.put(name, value);
        }
    }

    /** Whole seconds, rounded up: a message is never delivered early. */
    static long seconds(Duration duration) {
        return -Math.floorDiv(-duration.toMillis(), 1000L);
    }
}
