package dev.hookstation.client;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.StringJoiner;

/** One request of the API, and whether it may be repeated. */
final class Call {
    final String method;
    final String path;
    final Map<String, String> headers = new LinkedHashMap<>();
    byte[] body = new byte[0];

    /** Sending it twice has an effect that sending it once does not have. */
    boolean isOnce;

    /** How long the broker may hold the response back. */
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

    /** Sends it on condition that the object still has a version, null for none. */
    Call ifMatch(Long version) {
        if (version != null) {
            headers.put("If-Match", "\"" + version + "\"");
            // The repeat of a change that had its effect would meet the version that it made.
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

    /** Puts a value that is not null; instants and durations as the API takes them. */
    static void put(Map<String, Object> into, String name, Object value) {
        if (value instanceof Duration duration) {
            into.put(name, duration.toMillis());
        } else if (value instanceof Instant instant) {
            into.put(name, instant.toString());
        } else if (value != null) {
            into.put(name, value);
        }
    }

    /** Whole seconds, rounded up: a message never comes before its time. */
    static long seconds(Duration duration) {
        return -Math.floorDiv(-duration.toMillis(), 1000L);
    }
}
