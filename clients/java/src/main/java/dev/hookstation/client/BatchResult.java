package dev.hookstation.client;

import java.time.Duration;
import java.util.Optional;

/**
 * The result of one message of a batch.
 *
 * @param message the message, if it is stored
 * @param error why not, otherwise
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
