package dev.hookstation.client;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The options of a receive: {@code ReceiveOptions.defaults().max(100).waitFor(Duration.ofSeconds(20))}.
 *
 * @param max the maximum number of messages of one call, 1 to 100
 * @param waitFor how long the broker waits for a message, up to 20 seconds
 * @param lease the time until another worker may receive the messages, in whole seconds
 * @param workerId identifies the caller, or null
 * @param resume first receives the messages that this worker id has already leased, after a crash
 * @param sticky sends messages of an ordering key to the same worker id
 * @param autoAck acknowledges the messages when the broker returns them: delivery at most once,
 *     without leases
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
     * The default options: ten messages, no wait, a lease of 30 seconds.
     *
     * @return the options
     */
    public static ReceiveOptions defaults() {
        return new ReceiveOptions(10, Duration.ZERO, Duration.ofSeconds(30), null, false, false, false);
    }

    /**
     * A copy with a number of messages.
     *
     * @param value 1 to 100
     * @return the options
     */
    public ReceiveOptions max(int value) {
        return new ReceiveOptions(value, waitFor, lease, workerId, resume, sticky, autoAck);
    }

    /**
     * A copy with a wait.
     *
     * @param value up to 20 seconds
     * @return the options
     */
    public ReceiveOptions waitFor(Duration value) {
        return new ReceiveOptions(max, value, lease, workerId, resume, sticky, autoAck);
    }

    /**
     * A copy with a lease.
     *
     * @param value 1 second to 12 hours
     * @return the options
     */
    public ReceiveOptions lease(Duration value) {
        return new ReceiveOptions(max, waitFor, value, workerId, resume, sticky, autoAck);
    }

    /**
     * A copy with a worker id.
     *
     * @param value up to 64 characters
     * @return the options
     */
    public ReceiveOptions workerId(String value) {
        return new ReceiveOptions(max, waitFor, lease, value, resume, sticky, autoAck);
    }

    /**
     * A copy that first receives the messages that the worker id has already leased.
     *
     * @param value whether to do so
     * @return the options
     */
    public ReceiveOptions resume(boolean value) {
        return new ReceiveOptions(max, waitFor, lease, workerId, value, sticky, autoAck);
    }

    /**
     * A copy that sends messages of an ordering key to the same worker id.
     *
     * @param value whether to do so
     * @return the options
     */
    public ReceiveOptions sticky(boolean value) {
        return new ReceiveOptions(max, waitFor, lease, workerId, resume, value, autoAck);
    }

    /**
     * A copy that acknowledges automatically: delivery at most once.
     *
     * @param value whether to do so
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
