"""Queue messages that the pipeline copied from the lake, at a given rate.

A message is restored under its own key with its body as it was encrypted. Its delivery is new, or
the old one if the tables still have it. Everything for a row is written together and the copied row
is deleted with it, so a killed process leaves all of it or nothing.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from django.db.models import Exists, F, OuterRef

from channels_app import failpoints
from channels_app.access.principal import Principal
from channels_app.core import ids
from channels_app.core.errors import Conflict, NotFound
from channels_app.database import slices, transactions
from channels_app.models import (
    AuditEntry,
    Channel,
    Consumer,
    Message,
    MessageBody,
    new_id,
    reseed_ids,
)
from channels_app.registry import data_encryption
from delivery import transitions
from delivery.core.lifecycle import FINISHED, DeliveryState, Reason
from delivery.models import (
    Delivery,
    Replay,
    Restore,
    Restored,
    RestoredMessage,
    RetentionMark,
)
from delivery.models.reconciliation import EVERY_CHANNEL
from delivery.replay.filters import ReplayFilter, store
from delivery.replay.runner import Pace, requeue

DONE = tuple(sorted(state.value for state in FINISHED))
BATCH = 200
"""Rows in one transaction; each may have a body."""
HORIZON_S = 5.0
"""With a rate, rows are queued only this far ahead, so that cancelling takes effect soon."""
GONE = "The consumer is retired: the broker sends it nothing."
SEALED = "Bodies are encrypted with keys that are no longer installed: {}."


class Sorted(NamedTuple):
    """How some rows are to be restored."""

    missing: list[Restored]
    """Rows whose messages are created again."""
    new: list[Restored]
    """Rows whose deliveries are created."""
    finished: list[int]
    """Existing deliveries that are finished."""


def is_any_open() -> bool:
    """Whether any restore is unfinished."""
    return Restore.objects.filter(state__in=Restore.OPEN).exists()


def run_each(now: datetime, slot: int) -> Iterator[int]:
    """Queue rows as long as there are any; yields the number of each step."""
    moved = 1
    while moved:
        moved = 0
        open_ = Restore.objects.filter(state__in=Restore.OPEN).order_by("id")
        for restore_id in open_.values_list("id", flat=True):
            work = partial(_admit, restore_id, now, slot)
            count = transactions.run(work, on_collision=reseed_ids)
            failpoints.reach("after_restore")
            moved += count
            yield count


def cancel(restore_id: int, principal: Principal, *, now: datetime) -> Restore:
    """Stop a restore. Deliveries that it has queued are still sent.

    Raises Conflict when it has ended, NotFound when there is none.
    """

    def write() -> Restore:
        row = Restore.objects.select_for_update().filter(id=restore_id).first()
        if row is None:
            raise NotFound("unknown_replay", "There is no such restore.")
        if row.state not in Restore.OPEN:
            raise Conflict("replay_ended", f"The restore is {row.state} already.")
        _end(row, Restore.State.CANCELLED, now, actor=principal.actor, reason=principal.reason)
        return row

    return transactions.run(write)


def forget() -> Iterator[int]:
    """Delete rows that restores leave behind; yields the number of each step.

    These are restored messages without deliveries, which the lake has, and copied rows that will
    not be queued.
    """
    ended = Restore.objects.exclude(state__in=Restore.OPEN).filter(id=OuterRef("restore_id"))
    while brought := list(
        Restored.objects.filter(Exists(ended)).values_list("id", "body_bytes")[:BATCH]
    ):
        for part in slices.cut(brought):
            yield Restored.objects.filter(id__in=part).delete()[0]
    after = -1
    while page := list(
        RestoredMessage.objects.filter(message_id__gt=after)
        .order_by("message_id")
        .values_list("message_id", flat=True)[:BATCH]
    ):
        after = page[-1]
        sizes = dict(Message.objects.filter(id__in=page).values_list("id", "body_bytes"))
        for part in slices.cut((key, sizes.get(key, 0)) for key in page):
            yield transactions.run(partial(_forget, part))


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
    result = Sorted([], [], [])
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
                result.finished.append(key)
            continue
        if not is_here:
            result.missing.append(row)
        result.new.append(row)
    return result


def messages(rows: Sequence[Restored], consumer: Consumer) -> None:
    """Create messages that only the lake has had."""
    if not rows:
        return
    # The tables lack some of its deliveries, which reconciliation must not report as missing.
    RetentionMark.note(consumer.channel_id, max(row.message_id for row in rows))
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
    created = [
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
    transitions.create(created, slot)
    first = [row.message_id for row in rows if row.is_first]
    Message.objects.filter(id__in=first).update(consumer_count=F("consumer_count") + 1)
    return [row.id for row in created]


def _admit(restore_id: int, now: datetime, slot: int) -> int:
    rows = Restore.objects.select_for_update(skip_locked=True)
    restore = rows.filter(id=restore_id, state__in=Restore.OPEN).first()
    if restore is None:
        return 0
    consumer = Consumer.objects.filter(id=restore.consumer_id).exclude(state="retired").first()
    unknown = [key for key in restore.key_ids if not data_encryption.knows_key(key)]
    if consumer is None or unknown:
        error = GONE if consumer is None else SEALED.format(", ".join(unknown))
        _end(restore, Restore.State.REFUSED, now, error=error)
        return 0
    pace = Pace(max(now, restore.next_due_at or now), restore.rate_per_second)
    brought = Restored.objects.filter(restore_id=restore.id).order_by("message_id")
    batch = list(brought[: min(BATCH, _places(pace, now))])
    if not batch:
        if restore.state == Restore.State.STAGED and not brought.exists():
            _end(restore, Restore.State.FINISHED, now)
        return 0
    _begin(restore, consumer, now)
    sorted_rows = sort(batch, consumer, now)
    messages(sorted_rows.missing, consumer)
    keys = deliveries(sorted_rows.new, consumer, restore, pace, slot)
    requeued = requeue(
        sorted_rows.finished,
        states=DONE,
        replay_id=restore.replay_id or 0,
        pace=pace,
        first_place=len(keys),
        slot=slot,
    )
    Restored.objects.filter(id__in=[row.id for row in batch]).delete()
    _keep(restore, sorted_rows, keys, requeued, len(batch), pace, now)
    failpoints.reach("in_restore")
    return len(batch)


def _places(pace: Pace, now: datetime) -> int:
    """Return how many rows the rate permits to be queued now."""
    if not pace.rate_per_second:
        return BATCH
    seconds = (now + timedelta(seconds=HORIZON_S) - pace.start).total_seconds()
    return max(0, int(seconds * pace.rate_per_second) + 1) if seconds >= 0 else 0


def _begin(restore: Restore, consumer: Consumer, now: datetime) -> None:
    """Create a Replay, by which people find the deliveries, and record who requested it."""
    if restore.replay_id is not None:
        return
    slug = Channel.objects.values_list("slug", flat=True).get(id=consumer.channel_id)
    wanted = ReplayFilter(kind="missing", channel=slug, consumer=consumer.client_id)
    replay = Replay.objects.create(
        id=new_id(),
        state=Replay.State.FINISHED,
        filter=store(wanted),
        consumer_ids=[consumer.id],
        consumer_index=1,
        rate_per_second=restore.rate_per_second,
        reason=restore.reason,
        requested_by=restore.requested_by,
        team_id=consumer.team_id,
        matched_count=restore.matched_count,
        upper_id=0,
        next_due_at=now,
        created_at=now,
        finished_at=now,
    )
    restore.replay_id = replay.id
    AuditEntry.record(
        restore.requested_by,
        "replay.restore",
        f"replay:{replay}",
        team_id=consumer.team_id,
        reason=restore.reason,
        after={"restore": restore.id, "matched": restore.matched_count, **restore.options},
    )


def _keep(
    restore: Restore,
    sorted_rows: Sorted,
    keys: list[int],
    requeued: int,
    taken: int,
    pace: Pace,
    now: datetime,
) -> None:
    queued = len(keys) + requeued
    restore.queued_count += queued
    restore.skipped_count += taken - queued
    restore.next_due_at = pace.after(queued)
    if keys:
        messages = [row.message_id for row in sorted_rows.new]
        restore.first_key = min(keys) if not restore.first_key else min(restore.first_key, *keys)
        restore.last_key = max(restore.last_key, *keys)
        restore.low = min(messages) if not restore.low else min(restore.low, *messages)
        restore.high = max(restore.high, *messages)
    # The pipeline writes the other columns.
    restore.save(
        update_fields=[
            *("queued_count", "skipped_count", "next_due_at", "replay_id"),
            *("first_key", "last_key", "low", "high"),
        ]
    )
    Replay.objects.filter(id=restore.replay_id or 0).update(
        replayed_count=restore.queued_count, finished_at=now, version=F("version") + 1
    )


def _end(
    restore: Restore,
    state: str,
    now: datetime,
    *,
    error: str = "",
    actor: str = "broker",
    reason: str = "",
) -> None:
    restore.state, restore.finished_at, restore.error = state, now, error
    restore.save(update_fields=["state", "finished_at", "error"])
    if restore.replay_id is None and state == Restore.State.FINISHED:
        return
    target = f"restore:{restore.id}"
    if restore.replay_id is not None:
        target = f"replay:{ids.to_public(ids.REPLAY, restore.replay_id)}"
    AuditEntry.record(
        actor,
        f"replay.{state}",
        target,
        reason=reason or error,
        after={"queued": restore.queued_count, "left_out": restore.skipped_count},
    )


def _forget(page: list[int]) -> int:
    # Locked first, as in retention: a backfill may be creating a delivery of one of them.
    locked = Message.objects.filter(id__in=page).order_by("id").select_for_update()
    here = set(locked.values_list("id", flat=True))
    wanted = set(Delivery.objects.filter(message_id__in=page).values_list("message_id", flat=True))
    gone = sorted(here - wanted)
    if gone:
        RetentionMark.note(EVERY_CHANNEL, gone[-1])
        MessageBody.objects.filter(message_id__in=gone).delete()
        messages = Message.objects.filter(id__in=gone)
        messages._raw_delete(messages.db)
    finished = [key for key in page if key not in here or key not in wanted]
    RestoredMessage.objects.filter(message_id__in=finished).delete()
    return len(gone)
