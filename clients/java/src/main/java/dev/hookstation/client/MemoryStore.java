package dev.hookstation.client;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;

/**
 * Stores handled messages in memory for a week, which is longer than the broker retries. For tests,
 * or a process that may lose them.
 */
public class MemoryStore implements Store {
    static final long KEEP_S = Duration.ofDays(7).toSeconds();
    private static final long RUNNING = 0;
    private static final long SWEEP_INTERVAL_S = 3600;

    /** Unix seconds at which a message was handled; {@link #RUNNING} while it is being handled. */
    private final Map<String, Long> states = new LinkedHashMap<>();

    private long sweptAt;

    /** Creates an empty store. */
    public MemoryStore() {}

    @Override
    public final synchronized Optional<Claim> claim(String messageId) {
        sweep();
        Long at = states.get(messageId);
        if (at != null && at == RUNNING) {
            throw new RetryException(
                    Duration.ofSeconds(1), "the same message is being handled");
        }
        if (at != null) {
            return Optional.empty();
        }
        states.put(messageId, RUNNING);
        return Optional.of(new Claim() {
            @Override
            public void done() {
                settle(messageId);
            }

            @Override
            public void forget() {
                remove(messageId);
            }
        });
    }

    /** Called before a message counts as handled, one at a time. */
    void save(String messageId, long at) {}

    final synchronized void remember(String messageId, long at) {
        states.put(messageId, at);
    }

    final synchronized Map<String, Long> handled() {
        Map<String, Long> handled = new LinkedHashMap<>(states);
        handled.values().removeIf(at -> at == RUNNING || now() - at > KEEP_S);
        return handled;
    }

    private synchronized void settle(String messageId) {
        long at = now();
        try {
            save(messageId, at);
        } catch (RuntimeException error) {
            states.remove(messageId);
            throw error;
        }
        states.put(messageId, at);
    }

    private synchronized void remove(String messageId) {
        states.remove(messageId);
    }

    private void sweep() {
        if (now() - sweptAt >= SWEEP_INTERVAL_S) {
            sweptAt = now();
            states.values().removeIf(at -> at != RUNNING && sweptAt - at > KEEP_S);
        }
    }

    private static long now() {
        return System.currentTimeMillis() / 1000;
    }
}
