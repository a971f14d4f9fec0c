"""Erase a channel with everything ever sent on it, in small transactions."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from django.db import transaction
from django.db.models import ProtectedError

from channels_app.database import clock
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


def close(channel: Channel, *, actor: str, reason: str, counted: RowCounts) -> None:
    """Retire the consumers and end the schedules, and record who did it.

    Afterwards nothing more is stored, fanned out or sent.
    """
    now = clock.now()
    with transaction.atomic():
        channel.paused = True
        channel.save()
        RetentionMark.note(channel.id, ALL)
        Schedule.objects.filter(channel=channel).delete()
        for consumer in Consumer.objects.filter(channel=channel).exclude(state="retired"):
            consumer.state = Consumer.State.RETIRED
            consumer.state_reason = "Its channel is being deleted."
            consumer.state_changed_at = now
            consumer.save()
        _audit(channel.slug, "channel.delete", actor, reason, before=asdict(counted))


def rows(channel: Channel) -> Iterator[int]:
    """Delete deliveries with their attempts, then messages; yield the number of each batch.

    May be interrupted: the remaining rows belong to a channel that sends nothing.
    """
    for consumer_id in list(Consumer.objects.filter(channel=channel).values_list("id", flat=True)):
        yield from _deliveries(consumer_id)
    yield from _messages(channel.id)


def finish(channel: Channel, *, actor: str, reason: str) -> bool:
    """Delete the channel with its dependent rows; return False if new rows arrived meanwhile."""
    consumers = Consumer.objects.filter(channel=channel)
    try:
        with transaction.atomic():
            ids = list(consumers.values_list("id", flat=True))
            Counter.objects.filter(consumer_id__in=ids).delete()
            RetentionMark.objects.filter(channel_id=channel.id).delete()
            consumers.delete()
            Channel.objects.get(id=channel.id).delete()
            _audit(channel.slug, "channel.deleted", actor, reason)
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
    while True:
        with transaction.atomic():
            ids = list(
                Delivery.objects.filter(consumer_id=consumer_id).values_list("id", flat=True)[
                    :BATCH
                ]
            )
            Attempt.objects.filter(delivery_id__in=ids).delete()
            OrderingWaiter.objects.filter(delivery_id__in=ids).delete()
            Delivery.objects.filter(id__in=ids).delete()
        if not ids:
            OrderingKey.objects.filter(consumer_id=consumer_id).delete()
            return
        yield len(ids)


def _messages(channel_id: int) -> Iterator[int]:
    while True:
        with transaction.atomic():
            rows = Message.objects.filter(channel_id=channel_id).order_by("id")
            page = list(rows.values_list("id", "producer_id", "idempotency_key")[:BATCH])
            ids = [message_id for message_id, _, _ in page]
            # A record must not outlive its message: reconciliation would count that as lost.
            digests = [
                IdempotencyRecord.digest_of(channel_id, owner, key)
                for _, producer_id, key in page
                if key
                # The channel may have had another deduplication scope when the message was stored.
                for owner in (producer_id, IdempotencyRecord.SHARED)
            ]
            IdempotencyRecord.objects.filter(digest__in=sorted(digests)).delete()
            Message.objects.filter(id__in=ids).delete()  # and their bodies
        if not ids:
            return
        yield len(ids)


def _audit(
    slug: str, action: str, actor: str, reason: str, *, before: dict[str, Any] | None = None
) -> None:
    AuditEntry.objects.create(
        actor=actor, action=action, target=f"channel:{slug}", reason=reason, before=before
    )
