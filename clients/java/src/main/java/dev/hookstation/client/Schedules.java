package dev.hookstation.client;

import java.util.LinkedHashMap;
import java.util.Map;

/** The schedules of one channel. */
public final class Schedules {
    private final Hookstation client;
    private final String channel;

    Schedules(Hookstation client, String channel) {
        this.client = client;
        this.channel = channel;
    }

    /**
     * Creates or replaces a schedule. Idempotent.
     *
     * @param name its name
     * @param settings the fields of docs/api.md, "Schedules": {@code cron} or {@code every_ms}, and
     *     {@code body}, which is sent as JSON unless it is a string or a byte array
     * @return the schedule
     */
    public Resource put(String name, Map<String, ?> settings) {
        Map<String, Object> said = new LinkedHashMap<>(settings);
        Object body = said.remove("body");
        if (body != null) {
            Outgoing.of(body).bodyFields().forEach(said::putIfAbsent);
        }
        return client.resource(call("PUT", name).json(said));
    }

    /**
     * A schedule, with its next occurrences and the results of the last ones.
     *
     * @param name its name
     * @return the schedule
     */
    public Resource get(String name) {
        return client.resource(call("GET", name));
    }

    /**
     * The schedules of the channel, newest first, without their bodies.
     *
     * @return the schedules
     */
    public Pages list() {
        return client.pages(() -> call("GET"));
    }

    /**
     * Deletes a schedule; its messages are kept.
     *
     * @param name its name
     */
    public void delete(String name) {
        client.send(call("DELETE", name));
    }

    /**
     * Pauses a schedule until {@link #resume}.
     *
     * @param name its name
     * @return the schedule
     */
    public Resource pause(String name) {
        return client.resource(call("POST", name, "pause"));
    }

    /**
     * Resumes a paused schedule; occurrences during the pause are not published.
     *
     * @param name its name
     * @return the schedule
     */
    public Resource resume(String name) {
        return client.resource(call("POST", name, "resume"));
    }

    private Call call(String method, String... parts) {
        String[] all = new String[parts.length + 3];
        all[0] = "channels";
        all[1] = channel;
        all[2] = "schedules";
        System.arraycopy(parts, 0, all, 3, parts.length);
        return new Call(method, Call.pathOf(all));
    }
}
