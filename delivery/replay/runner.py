"""Run replays and backfills in short transactions, each of which stores its progress.

Rows, counters and cursor are written together, so a killed process loses at most an uncommitted
slice, which then has no effect.
"""

import heapq
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from channels_app import failpoints
from channels_app.core import ids
from channels_app.core.errors import Invalid
from channels_app.database import transactions
from channels_app.database.raw import by_index
from channels_app.models import Channel, Consumer, Message, new_id, reseed_ids
from delivery import transitions
from delivery.core.lifecycle import DeliveryState, Reason
from delivery.models import Delivery, Replay
from delivery.replay.filters import ReplayFilter, load
from delivery.transitions import Move

logger = logging.getLogger(__name__)
SCAN = 2000
"""Most rows of one state that one range reads, even if a filter matches nothing."""
STEP = timedelta(milliseconds=100)
"""Rows of one tenth of a second share a time, so that a fast rate needs few UPDATEs."""
BATCH = 1000
"""Most rows that one slice queues."""
MAX_SLICES = 50
"""Most consumers without a match that one slice examines; a long key range counts as five."""
HORIZON_S = 60.0
"""With a rate, rows are queued only this far ahead, so that cancelling takes effect soon."""


@dataclass(frozen=True, slots=True)
class ReadKeys:
    """The result of one read."""

    ids: list[int]
    """Ids in ascending order."""
    end: int
    """Key up to which everything was read."""
    done: bool
    """Whether nothing is left up to the upper end."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When the rows of a slice are due."""

    start: datetime
    rate_per_second: float | None
    """None: all at ``start``."""

    def at(self, place: int) -> datetime:
        """Return when the row at ``place`` is due, never later than the rate says."""
        if not self.rate_per_second:
            return self.start
        return self.start + timedelta(seconds=place / self.rate_per_second) // STEP * STEP

    def after(self, count: int) -> datetime:
        """Return when the next slice begins."""
        if not self.rate_per_second:
            return self.start
        return self.start + timedelta(seconds=count / self.rate_per_second)


def is_any_open() -> bool:
    """Whether any replay is running."""
    return Replay.objects.filter(state=Replay.State.RUNNING).exists()


def run_due(now: datetime, slot: int) -> int:
    """Run one slice of every running replay; return how many deliveries were queued."""
    return sum(run_each(now, slot))


def run_each(now: datetime, slot: int) -> Iterator[int]:
    """Run one slice of every running replay, each in its own transaction; yields the counts."""
    for replay in Replay.objects.filter(state=Replay.State.RUNNING).order_by("id"):
        try:
            yield run_slice(replay, now, BATCH, slot)
        except Invalid as error:
            # Written by another version of the program: it must not hold up the others.
            logger.error("replay %s is cancelled, because it cannot run: %s", replay.id, error)
            Replay.objects.filter(id=replay.id, state=Replay.State.RUNNING).update(
                state=Replay.State.CANCELLED, finished_at=now, version=F("version") + 1
            )


def run_slice(replay: Replay, now: datetime, budget: int, slot: int = 0) -> int:
    """Queue up to ``budget`` deliveries and store the progress; return how many.

    Has no effect on a replay that is finished, cancelled, or locked by another process.
    """
    work = partial(_run, replay.id, now, budget, slot)
    count = transactions.run(work, on_collision=reseed_ids)
    failpoints.reach("after_replay")
    return count


def deliveries(
    consumer_id: int, states: Sequence[str], wanted: Q, *, after: int, upper: int, limit: int
) -> ReadKeys:
    """Read up to ``limit`` deliveries of a consumer with keys in (after, upper].

    Merges one range of the index (consumer, state, id) per state: the index cannot serve a sort
    over several states.
    """
    end = min(boundary(consumer_id, state, after, upper, SCAN) for state in states)
    rows = _of(consumer_id).filter(wanted, id__gt=after, id__lte=end)
    ranges = [
        list(rows.filter(state=state).order_by("id").values_list("id", flat=True)[: limit + 1])
        for state in states
    ]
    return _cut(list(heapq.merge(*ranges)), end, upper, limit)


def messages(channel_id: int, wanted: Q, *, after: int, upper: int, limit: int) -> ReadKeys:
    """Read up to ``limit`` messages of a channel with keys in (after, upper]."""
    rows = Message.objects.filter(channel_id=channel_id, id__gt=after, id__lte=upper)
    rows = by_index(rows, "message_channel")
    keys = rows.order_by("id").values_list("id", flat=True)
    end = next(iter(keys[SCAN : SCAN + 1]), upper)
    matching = keys.filter(wanted, id__lte=end)[: limit + 1]
    return _cut(list(matching), end, upper, limit)


def boundary(consumer_id: int, state: str, after: int, upper: int, scan: int) -> int:
    """Return the key ``scan`` rows after ``after``, or ``upper``; reads only the index."""
    keys = (
        _of(consumer_id)
        .filter(state=state, id__gt=after, id__lte=min(upper, ids.LARGEST))
        .order_by("id")
        .values_list("id", flat=True)
    )
    return next(iter(keys[scan : scan + 1]), upper)


def requeue(
    delivery_ids: Collection[int],
    *,
    states: Collection[str],
    replay_id: int,
    pace: Pace,
    first_place: int,
    slot: int,
) -> int:
    """Queue those of ``delivery_ids`` that still are in ``states``; return how many.

    Runs inside the caller's transaction. Skips rows that this replay has queued before.
    """
    rows = [
        row
        for row in Delivery.objects.filter(id__in=delivery_ids, state__in=states)
        .order_by("id")
        .select_for_update()
        if row.replay_id != replay_id
    ]
    moves = [
        Move(row, transitions.REPLAY, pace.at(place), replay_id=replay_id)
        for place, row in enumerate(rows, first_place)
    ]
    if moves:
        transitions.apply(moves, now=pace.start, slot=slot)
    return len(moves)


def make(
    message_ids: list[int],
    consumer: Consumer,
    wanted: Q,
    *,
    pace: Pace,
    first_place: int,
    slot: int,
) -> int:
    """Create queued deliveries of these messages; return how many.

    Runs inside the caller's transaction. If a fan-out creates one of them first, the unique key
    causes a rollback: the caller runs it again, and then finds that row.
    """
    # Locked and checked again: a concurrent cancellation now waits, or came first.
    messages = list(
        Message.objects.filter(wanted & unknown_to(consumer), id__in=message_ids)
        .order_by("id")
        .select_for_update()
    )
    created = [
        _delivery(message, consumer, pace, first_place + place)
        for place, message in enumerate(messages)
    ]
    transitions.create(created, slot)
    Message.objects.filter(id__in=[message.id for message in messages]).update(
        consumer_count=F("consumer_count") + 1
    )
    return len(created)


def unknown_to(consumer: Consumer) -> Q:
    """Return the condition for messages that this consumer has not been given.

    On a queue: messages that no consumer has been given. Deliveries that still waited when their
    consumer was retired do not count.
    """
    had = Delivery.objects.filter(message_id=OuterRef("pk"))
    if consumer.channel.kind != Channel.Kind.QUEUE:
        return Q(~Exists(had.filter(consumer_id=consumer.id)))
    lost = Q(state=DeliveryState.CANCELLED.value, reason=Reason.RETIRED.value)
    return Q(~Exists(had.exclude(lost & ~Q(consumer_id=consumer.id))))


@dataclass(slots=True)
class _Slice:
    """One slice in progress."""

    replay: Replay
    wanted: ReplayFilter
    pace: Pace
    now: datetime
    room: int
    slot: int
    count: int = 0

    def next_key_range(self, consumer: Consumer) -> ReadKeys:
        """Read one key range and queue its rows."""
        after = max(self.replay.cursor, self.wanted.first_id - 1, 0)
        upper, room = self.replay.upper_id, self.room - self.count
        if self.wanted.kind == "missing":
            condition = self.wanted.missing(consumer.event_types, self.now)
            key_range = messages(
                consumer.channel_id,
                condition & unknown_to(consumer),
                after=after,
                upper=upper,
                limit=room,
            )
            self.count += make(
                key_range.ids,
                consumer,
                condition,
                pace=self.pace,
                first_place=self.count,
                slot=self.slot,
            )
            return key_range
        key_range = deliveries(
            consumer.id,
            self.wanted.states,
            self.wanted.replayable(self.now),
            after=after,
            upper=upper,
            limit=room,
        )
        self.count += requeue(
            key_range.ids,
            states=self.wanted.states,
            replay_id=self.replay.id,
            pace=self.pace,
            first_place=self.count,
            slot=self.slot,
        )
        return key_range


def _run(replay_id: int, now: datetime, budget: int, slot: int) -> int:
    # Skipped when locked: two workers on one replay would only wait for each other.
    replay = (
        Replay.objects.select_for_update(skip_locked=True)
        .filter(id=replay_id, state=Replay.State.RUNNING)
        .first()
    )
    if replay is None:
        return 0
    pace = Pace(max(now, replay.next_due_at), replay.rate_per_second)
    room = min(budget, _places(pace, now))
    if not room:
        return 0
    part = _Slice(replay, load(replay), pace, now, room, slot)
    effort, last = 0, len(replay.consumer_ids)
    while part.count < room and effort < MAX_SLICES and replay.consumer_index < last:
        consumer = _consumer(replay.consumer_ids[replay.consumer_index])
        key_range = part.next_key_range(consumer) if consumer else None
        if key_range and not key_range.done:
            replay.cursor, effort = key_range.end, effort + 5
        else:
            replay.cursor, replay.consumer_index, effort = 0, replay.consumer_index + 1, effort + 1
    _keep(replay, part.count, pace, now)
    failpoints.reach("in_replay")
    return part.count


def _consumer(consumer_id: int) -> Consumer | None:
    """Return the consumer, unless it was retired meanwhile."""
    return Consumer.objects.filter(id=consumer_id).exclude(state=Consumer.State.RETIRED).first()


def _places(pace: Pace, now: datetime) -> int:
    """Return how many rows the rate permits to be queued now."""
    if not pace.rate_per_second:
        return 1 << 31
    seconds = (now + timedelta(seconds=HORIZON_S) - pace.start).total_seconds()
    return max(0, int(seconds * pace.rate_per_second) + 1) if seconds >= 0 else 0


def _keep(replay: Replay, count: int, pace: Pace, now: datetime) -> None:
    replay.replayed_count += count
    replay.next_due_at = pace.after(count)
    if replay.consumer_index >= len(replay.consumer_ids):
        replay.state = Replay.State.FINISHED
        replay.finished_at = now
    replay.version += 1
    replay.save()


def _of(consumer_id: int) -> QuerySet[Delivery]:
    return by_index(Delivery.objects.filter(consumer_id=consumer_id), "delivery_list")


def _cut(keys: list[int], end: int, upper: int, limit: int) -> ReadKeys:
    if len(keys) > limit:
        keys = keys[:limit]
        return ReadKeys(keys, keys[-1] if keys else 0, False)
    return ReadKeys(keys, end, end >= upper)


def _delivery(message: Message, consumer: Consumer, pace: Pace, place: int) -> Delivery:
    return Delivery(
        id=new_id(),
        message_id=message.id,
        consumer_id=consumer.id,
        channel_id=message.channel_id,
        state=DeliveryState.QUEUED.value,
        reason=Reason.ACCEPTED.value,
        priority=message.priority,
        due_at=max(message.due_at, pace.at(place)),
        expires_at=message.expires_at,
        event_type=message.event_type,
        ordering_key=message.ordering_key,
        accepted_at=message.accepted_at,
    )
