package dev.hookstation.client;

import java.time.Instant;

/**
 * A message that the broker has stored.
 *
 * @param id its id
 * @param isDuplicate whether an earlier request with the same idempotency key stored it, so that
 *     this one stored nothing
 * @param matchedConsumers the number of consumers that get it
 * @param dueAt the earliest time of delivery
 * @param url its URL in the API
 */
public record Message(
        String id, boolean isDuplicate, long matchedConsumers, Instant dueAt, String url) {

    static Message of(Resource found) {
        return new Message(
                found.text("id"),
                Boolean.TRUE.equals(found.fields().get("duplicate")),
                found.number("matched_consumers"),
                Delivery.instant(found, "due_at"),
                found.text("url"));
    }
}
