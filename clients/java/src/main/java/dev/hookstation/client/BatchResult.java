package dev.hookstation.client;

import java.time.Duration;
import java.util.Optional;

/**
 * The result for one message of a batch.
 *
 * @param message the message if it was stored, or null
 * @param error the error if it was refused, or null
 */
public record BatchResult(Optional<Message> message, Optional<HookstationException> error) {

    static BatchResult of(Resource item) {
        int status = (int) item.number("status");
        if (status >= 300) {
            HookstationException error = HookstationException.of(status, item, Duration.ZERO);
            return new BatchResult(Optional.empty(), Optional.of(error));
        }
        return new BatchResult(Optional.of(Message.of(item)), Optional.empty());
    }
}
