"""Run replays in short transactions, each of which stores its progress.

Rows, counters and cursor are written together, so a killed process loses at most an uncommitted
slice, which then has no effect.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db.models import F

from channels_app import failpoints, transactions
from channels_app.errors import Invalid
from channels_app.models import Consumer, new_id
from delivery.models import Replay
from delivery.steps.replay import missing, windows
from delivery.steps.replay.filters import ReplayFilter, load
from delivery.steps.replay.requeue import Pace, requeue

logger = logging.getLogger(__name__)

BATCH = 1000
"""Most rows that one slice queues."""
MAX_SLICES = 50
"""Most consumers without a match that one slice examines; a long key range counts as five."""
HORIZON_S = 60.0
"""With a rate, rows are queued only this far ahead, so that cancelling takes effect soon."""


def run_due(now: datetime, slot: int) -> int:
    """Run one slice of every running replay; return how many deliveries were queued."""
    return sum(run_each(now, slot))


def is_any_open() -> bool:
    """Whether any replay is running."""
    return Replay.objects.filter(state=Replay.State.RUNNING).exists()


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
    count = transactions.run(work, on_collision=new_id.reseed)
    failpoints.reach("after_replay")
    return count


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

    def next_key_range(self, consumer: Consumer) -> windows.KeyRange:
        """Read one key range and queue its rows."""
        after = max(self.replay.cursor, self.wanted.first_id - 1, 0)
        upper, left = self.replay.upper_id, self.room - self.count
        if self.wanted.kind == "missing":
            condition = self.wanted.message_condition(consumer.event_types, self.now)
            key_range = windows.messages(
                consumer.channel_id,
                condition & missing.unknown_to(consumer),
                after=after,
                upper=upper,
                limit=left,
            )
            self.count += missing.make(
                key_range.ids,
                consumer,
                condition,
                pace=self.pace,
                first_place=self.count,
                slot=self.slot,
            )
            return key_range
        key_range = windows.deliveries(
            consumer.id,
            self.wanted.states,
            self.wanted.condition(self.now),
            after=after,
            upper=upper,
            limit=left,
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
    part = _Slice(replay, load(replay.filter), pace, now, room, slot)
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


def _places(pace: Pace, now: datetime) -> int:
    """Return how many rows the rate permits to be queued now."""
    if not pace.rate_per_second:
        return 1 << 31
    seconds = (now + timedelta(seconds=HORIZON_S) - pace.start).total_seconds()
    return max(0, int(seconds * pace.rate_per_second) + 1) if seconds >= 0 else 0


def _consumer(consumer_id: int) -> Consumer | None:
    """Return the consumer, unless it was retired meanwhile."""
    return Consumer.objects.filter(id=consumer_id).exclude(state=Consumer.State.RETIRED).first()


def _keep(replay: Replay, count: int, pace: Pace, now: datetime) -> None:
    replay.replayed_count += count
    replay.next_due_at = pace.after(count)
    if replay.consumer_index >= len(replay.consumer_ids):
        replay.state = Replay.State.FINISHED
        replay.finished_at = now
    replay.version += 1
    replay.save()
