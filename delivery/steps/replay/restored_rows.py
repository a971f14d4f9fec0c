"""Restore messages under their own keys, with bodies as they were stored, and deliveries."""

from collections import Counter as Tally
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from django.db.models import F

from channels_app.models import Consumer, Message, MessageBody, new_id
from delivery import lanes
from delivery.models import Counter, Delivery, Pruned, Restore, Restored, RestoredMessage
from delivery.models.counter import MADE
from delivery.rules.lifecycle import FINISHED, DeliveryState, Reason
from delivery.steps.replay.requeue import Pace

DONE = tuple(sorted(state.value for state in FINISHED))


class Sorted(NamedTuple):
    """How some rows are to be restored."""

    missing: list[Restored]
    """Rows whose messages are created again."""
    new: list[Restored]
    """Rows whose deliveries are created."""
    finished: list[int]
    """Existing deliveries that are finished."""


def sort(rows: Sequence[Restored], consumer: Consumer, now: datetime) -> Sorted:
    """Decide how to restore a consumer's rows. Call this and the rest in one transaction."""
    keys = [row.message_id for row in rows]
    # Locked first, as every step does that changes both.
    locked = Message.objects.filter(id__in=keys).order_by("id").select_for_update()
    states = dict(locked.values_list("id", "state"))
    its_own = Delivery.objects.filter(message_id__in=keys, consumer_id=consumer.id)
    here = {
        message_id: (key, state)
        for key, message_id, state in its_own.order_by("id")
        .select_for_update()
        .values_list("id", "message_id", "state")
    }
    found = Sorted([], [], [])
    for row in rows:
        is_here = row.message_id in states
        if row.expires_at is not None and row.expires_at <= now:
            continue
        # Cancelled meanwhile, or not fanned out yet; or neither in the tables nor copied.
        if states.get(row.message_id, "dispatched") != "dispatched":
            continue
        if not is_here and row.body is None:
            continue
        if row.message_id in here:
            key, state = here[row.message_id]
            if state in DONE:
                found.finished.append(key)
            continue
        if not is_here:
            found.missing.append(row)
        found.new.append(row)
    return found


def messages(rows: Sequence[Restored], consumer: Consumer) -> None:
    """Create messages that only the lake has had."""
    if not rows:
        return
    # The tables lack some of its deliveries, which reconciliation must not report as missing.
    Pruned.note(consumer.channel_id, max(row.message_id for row in rows))
    same = (
        *("channel_id", "producer_id", "event_type", "priority", "ordering_key"),
        *("idempotency_key", "content_type", "headers", "body_bytes", "accepted_at"),
        *("due_at", "expires_at", "consumer_count", "version"),
    )
    Message.objects.bulk_create(
        Message(
            id=row.message_id,
            state=Message.State.DISPATCHED,
            **{name: getattr(row, name) for name in same},
        )
        for row in rows
    )
    MessageBody.objects.bulk_create(
        MessageBody(message_id=row.message_id, data=row.body, key_id=row.body_key_id)
        for row in rows
    )
    RestoredMessage.objects.bulk_create(
        [RestoredMessage(message_id=row.message_id) for row in rows], ignore_conflicts=True
    )


def deliveries(
    rows: Sequence[Restored], consumer: Consumer, restore: Restore, pace: Pace, slot: int
) -> list[int]:
    """Create new deliveries; return their keys."""
    made = [
        Delivery(
            id=new_id(),
            message_id=row.message_id,
            consumer_id=consumer.id,
            channel_id=row.channel_id,
            state=DeliveryState.QUEUED.value,
            reason=Reason.REPLAYED.value,
            priority=row.priority,
            due_at=max(row.due_at, pace.at(place)),
            expires_at=row.expires_at,
            event_type=row.event_type,
            ordering_key=row.ordering_key,
            replay_id=restore.replay_id,
            accepted_at=row.accepted_at,
        )
        for place, row in enumerate(rows)
    ]
    Delivery.objects.bulk_create(made)
    first = [row.message_id for row in rows if row.is_first]
    Message.objects.filter(id__in=first).update(consumer_count=F("consumer_count") + 1)
    tally: Tally[tuple[int, str]] = Tally()
    tally[consumer.id, DeliveryState.QUEUED.value] += len(made)
    tally[consumer.id, MADE] += len(made)
    Counter.add(tally, slot)
    lanes.enter_rows([row.id for row in made])
    return [row.id for row in made]
