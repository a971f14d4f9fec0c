"""Erase a channel with everything ever sent on it, in small transactions."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from django.db import transaction
from django.db.models import ProtectedError

from channels_app.access.principal import Principal
from channels_app.database import clock, slices
from channels_app.models import (
    AuditEntry,
    Channel,
    Consumer,
    EventType,
    IdempotencyRecord,
    Message,
    Schedule,
)
from delivery.models import Attempt, Counter, Delivery, OrderingKey, OrderingWaiter, RetentionMark
from delivery.models.counter import MADE, OPEN
from delivery.models.reconciliation import ALL

BATCH = 500
"""Rows read at once, and at most deleted in one transaction (database/slices.py)."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The number of rows that are erased with a channel."""

    consumers: int
    event_types: int
    schedules: int
    messages: int
    deliveries: int
    waiting: int
    """Deliveries that would still have been sent."""


def count_rows(channel: Channel) -> RowCounts:
    """Count without changing anything; only messages are counted row by row."""
    consumer_ids = list(Consumer.objects.filter(channel=channel).values_list("id", flat=True))
    counts = Counter.read(consumer_ids).values()
    return RowCounts(
        consumers=len(consumer_ids),
        event_types=EventType.objects.filter(channel=channel).count(),
        schedules=Schedule.objects.filter(channel=channel).count(),
        messages=Message.objects.filter(channel=channel).count(),
        deliveries=sum(sum(row.values()) - row[MADE] for row in counts),
        waiting=sum(number for row in counts for s, number in row.items() if s in OPEN),
    )


def close(channel: Channel, principal: Principal, counted: RowCounts) -> None:
    """Retire the consumers and end the schedules, and record who did it.

    Afterwards nothing more is stored, fanned out or sent.
    """
    now = clock.now()
    with transaction.atomic():
        channel = Channel.objects.select_for_update().get(id=channel.id)
        channel.paused = True
        channel.save()
        RetentionMark.note(channel.id, ALL)
        Schedule.objects.filter(channel=channel).delete()
        for consumer in Consumer.objects.filter(channel=channel).exclude(state="retired"):
            consumer.state = Consumer.State.RETIRED
            consumer.state_reason = "Its channel is being deleted."
            consumer.state_changed_at = now
            consumer.save()
        _audit(channel.slug, "channel.delete", principal, before=asdict(counted))


def rows(channel: Channel) -> Iterator[int]:
    """Delete deliveries with their attempts, then messages; yield the number of each batch.

    May be interrupted: the remaining rows belong to a channel that sends nothing.
    """
    for consumer_id in list(Consumer.objects.filter(channel=channel).values_list("id", flat=True)):
        yield from _deliveries(consumer_id)
    yield from _messages(channel.id)


def finish(channel: Channel, principal: Principal) -> bool:
    """Delete the channel with its dependent rows; return False if new rows arrived meanwhile."""
    consumers = Consumer.objects.filter(channel=channel)
    try:
        with transaction.atomic():
            ids = list(consumers.values_list("id", flat=True))
            Counter.objects.filter(consumer_id__in=ids).delete()
            RetentionMark.objects.filter(channel_id=channel.id).delete()
            consumers.delete()
            for source in Consumer.objects.select_for_update().filter(dead_letter_channel=channel):
                source.dead_letter_channel = None
                source.save()  # the foreign key's SET_NULL would leave its version as it is
            Channel.objects.get(id=channel.id).delete()
            _audit(channel.slug, "channel.deleted", principal)
    except ProtectedError:
        return False
    return True


def left_over_rows(channel_id: int, consumer_ids: list[int]) -> int:
    """Delete rows written by processes with old configuration; call this a second later."""
    late = [batch for consumer_id in consumer_ids for batch in _deliveries(consumer_id)]
    # A sweep that cancelled rows at the same time may have created counters again.
    Counter.objects.filter(consumer_id__in=consumer_ids).delete()
    return sum(late) + sum(_messages(channel_id))


def _deliveries(consumer_id: int) -> Iterator[int]:
    rows = Delivery.objects.filter(consumer_id=consumer_id)
    while page := list(rows.values_list("id", flat=True)[:BATCH]):
        responses = Attempt.stored_bytes(page)
        for ids in slices.cut((key, responses.get(key, 0)) for key in page):
            with transaction.atomic():
                Attempt.objects.filter(delivery_id__in=ids).delete()
                OrderingWaiter.objects.filter(delivery_id__in=ids).delete()
                Delivery.objects.filter(id__in=ids).delete()
            yield len(ids)
    OrderingKey.objects.filter(consumer_id=consumer_id).delete()


def _messages(channel_id: int) -> Iterator[int]:
    rows = Message.objects.filter(channel_id=channel_id).order_by("id")
    columns = "id", "body_bytes", "producer_id", "idempotency_key"
    while page := list(rows.values_list(*columns)[:BATCH]):
        keys = {message_id: (owner, key) for message_id, _, owner, key in page if key}
        for ids in slices.cut((message_id, size) for message_id, size, _, _ in page):
            with transaction.atomic():
                _idempotency_records(
                    channel_id, [keys[message_id] for message_id in ids if message_id in keys]
                )
                Message.objects.filter(id__in=ids).delete()  # and their bodies
            yield len(ids)


def _idempotency_records(channel_id: int, keys: list[tuple[int | None, str]]) -> None:
    """Delete the records, which must not outlive their messages.

    Reconciliation would count that as lost.
    """
    digests = [
        IdempotencyRecord.digest_of(channel_id, owner, key)
        for producer_id, key in keys
        # The channel may have had another deduplication scope when the message was stored.
        for owner in (producer_id, IdempotencyRecord.SHARED)
    ]
    IdempotencyRecord.objects.filter(digest__in=sorted(digests)).delete()


def _audit(
    slug: str, action: str, principal: Principal, *, before: dict[str, Any] | None = None
) -> None:
    AuditEntry.objects.create(
        actor=principal.actor,
        action=action,
        target=f"channel:{slug}",
        reason=principal.reason,
        before=before,
    )
