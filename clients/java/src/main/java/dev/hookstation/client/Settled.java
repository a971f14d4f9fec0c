package dev.hookstation.client;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The leases that a call settled, and those that it did not settle.
 *
 * @param done the settled leases
 * @param failed the others, each with the reason: {@code expired}, {@code unknown} or
 *     {@code too_long}
 */
public record Settled(List<String> done, Map<String, String> failed) {

    static Settled of(Resource found) {
        List<String> done = new ArrayList<>();
        if (found.fields().get("done") instanceof List<?> leases) {
            leases.forEach(lease -> done.add(lease.toString()));
        }
        Map<String, String> failed = new LinkedHashMap<>();
        found.list("failed").forEach(item -> failed.put(item.text("lease"), item.text("error")));
        return new Settled(done, failed);
    }
}
