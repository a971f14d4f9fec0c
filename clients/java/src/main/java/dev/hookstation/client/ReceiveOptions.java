package dev.hookstation.client;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The options of a receive: {@code ReceiveOptions.defaults().max(100).waitFor(Duration.ofSeconds(20))}.
 *
 * @param max how many messages one call returns at most, 1 to 100
 * @param waitFor how long the broker waits when there is nothing, up to 20 seconds
 * @param lease how long the messages are the caller's, in whole seconds
 * @param workerId names the caller, or null
 * @param resume receives first what this worker id holds already: after a crash
 * @param sticky has messages of an ordering key come to the same worker id
 * @param autoAck acknowledges before the messages arrive: at most once, without leases
 */
public record ReceiveOptions(
        int max,
        Duration waitFor,
        Duration lease,
        String workerId,
        boolean resume,
        boolean sticky,
        boolean autoAck) {

    /**
     * Ten messages, no wait, a lease of 30 seconds.
     *
     * @return the options
     */
    public static ReceiveOptions defaults() {
        return new ReceiveOptions(10, Duration.ZERO, Duration.ofSeconds(30), null, false, false, false);
    }

    /**
     * The same with a number of messages.
     *
     * @param value 1 to 100
     * @return the options
     */
    public ReceiveOptions max(int value) {
        return new ReceiveOptions(value, waitFor, lease, workerId, resume, sticky, autoAck);
    }

    /**
     * The same with a wait.
     *
     * @param value up to 20 seconds
     * @return the options
     */
    public ReceiveOptions waitFor(Duration value) {
        return new ReceiveOptions(max, value, lease, workerId, resume, sticky, autoAck);
    }

    /**
     * The same with a lease.
     *
     * @param value 1 second to 12 hours
     * @return the options
     */
    public ReceiveOptions lease(Duration value) {
        return new ReceiveOptions(max, waitFor, value, workerId, resume, sticky, autoAck);
    }

    /**
     * The same with a name of the caller.
     *
     * @param value up to 64 characters
     * @return the options
     */
    public ReceiveOptions workerId(String value) {
        return new ReceiveOptions(max, waitFor, lease, value, resume, sticky, autoAck);
    }

    /**
     * The same, first with what the worker id holds already.
     *
     * @param value whether
     * @return the options
     */
    public ReceiveOptions resume(boolean value) {
        return new ReceiveOptions(max, waitFor, lease, workerId, value, sticky, autoAck);
    }

    /**
     * The same with ordering keys that stay with the worker id.
     *
     * @param value whether
     * @return the options
     */
    public ReceiveOptions sticky(boolean value) {
        return new ReceiveOptions(max, waitFor, lease, workerId, resume, value, autoAck);
    }

    /**
     * The same, at most once.
     *
     * @param value whether
     * @return the options
     */
    public ReceiveOptions autoAck(boolean value) {
        return new ReceiveOptions(max, waitFor, lease, workerId, resume, sticky, value);
    }

    Map<String, Object> asFields() {
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("max", max);
        said.put("wait_s", waitFor.toMillis() / 1000.0);
        said.put("lease_s", Call.seconds(lease));
        Call.put(said, "worker_id", workerId);
        if (resume) {
            said.put("resume", true);
        }
        if (sticky) {
            said.put("keys", "sticky");
        }
        if (autoAck) {
            said.put("auto_ack", true);
        }
        return said;
    }
}
