package dev.hookstation.client.grpc;

import dev.hookstation.client.Settled;
import dev.hookstation.client.Settlement;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** What waits to be sent to the broker. */
sealed interface Queued {
    /** Credits for more messages. */
    record Credits(int count) implements Queued {}

    /** The end of the client's side. */
    record Close() implements Queued {}

    /** A settlement, and its result. */
    final class Waiting implements Queued {
        final Settlement settlement;
        final CompletableFuture<Settled> result = new CompletableFuture<>();

        Waiting(Settlement settlement) {
            this.settlement = settlement;
        }
    }

    /**
     * Groups the settlements that follow each other and differ only in their leases, of which one
     * request of the broker may have so many.
     */
    static List<List<Waiting>> grouped(List<Queued> items, int maxLeases) {
        List<List<Waiting>> groups = new ArrayList<>();
        int leases = 0;
        for (Queued item : items) {
            if (!(item instanceof Waiting waiting)) {
                continue;
            }
            int more = waiting.settlement.leases().size();
            List<Waiting> last = groups.isEmpty() ? null : groups.get(groups.size() - 1);
            if (last == null
                    || leases + more > maxLeases
                    || !last.get(0).settlement.isLike(waiting.settlement)) {
                last = new ArrayList<>();
                groups.add(last);
                leases = 0;
            }
            last.add(waiting);
            leases += more;
        }
        return groups;
    }
}
