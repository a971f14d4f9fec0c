"""Consumers with something to claim now, most urgent first; others cost nothing."""

import heapq
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from delivery.rules.fair_sharing import LEVELS
from delivery.runtime.consumer_queue import LEAD, QUEUE_STATUSES, ConsumerQueue, QueueStatus

MAX_SCANNED = 1000
"""Outdated entries that the heap may keep: a sleeping queue may be woken again and again."""
SCAN = 100
"""Most queues of one place that a check examines; with thousands it continues in turn."""

Admits = Callable[[QueueStatus, int], int]
"""Returns how many requests a queue of this status may open if so many are open already."""


class Pick(NamedTuple):
    """A queue that may claim now."""

    queue: ConsumerQueue
    level: int
    """Its highest due priority."""
    room: int
    """How many deliveries it may claim."""
    status: QueueStatus


class ReadyConsumers:
    """Queues with due deliveries, by priority and status, and queues that sleep until later.

    Among queues of one priority and status, the one that has waited longest is next.
    """

    def __init__(self, queues: Mapping[int, ConsumerQueue]) -> None:
        self._queues = queues
        self._changed: dict[int, ConsumerQueue] = {}
        """Queues that changed since the last check."""
        self._waiting: dict[tuple[int, QueueStatus], dict[int, ConsumerQueue]] = {
            (level, status): {} for level in LEVELS for status in QUEUE_STATUSES
        }
        self._places: dict[int, tuple[int, QueueStatus]] = {}
        self._asleep: list[tuple[float, int]] = []
        """A heap. An entry that differs from `_until` is outdated: an earlier time replaced it."""
        self._until: dict[int, float] = {}
        self._more = False
        """Whether the last check left queues that could have claimed."""

    def note(self, queue: ConsumerQueue) -> None:
        """Must be called for every change that may let this queue claim, or claim sooner."""
        consumer_id = queue.view.id
        if self._queues.get(consumer_id) is queue:
            self._changed[consumer_id] = queue

    def forget(self, consumer_id: int) -> None:
        """Remove a consumer that this pump no longer serves."""
        self._changed.pop(consumer_id, None)
        self._until.pop(consumer_id, None)
        self._leave(consumer_id)

    @property
    def waiting_count(self) -> int:
        """Number of queues that had due deliveries at the last check, and may claim given room."""
        return len(self._places)

    def top(self) -> int:
        """Return the highest priority among those; 0 when there are none."""
        return next((level for (level, _), place in self._waiting.items() if place), 0)

    def gather(
        self, now: datetime, ticks: float, admits: Admits, most: int, *, from_below: bool = False
    ) -> list[Pick]:
        """Return up to ``most`` queues that may claim, most urgent first.

        ``from_below`` takes half of them from the other end, for the starvation guard. A queue that
        may not claim for its own reasons sleeps until that changes.
        """
        self._wake(now, ticks)
        picks: list[Pick] = []
        self._more = False
        if from_below:
            for level in reversed(LEVELS):
                self._gather(level, now, ticks, admits, most // 2, picks)
        known = {pick.queue.view.id for pick in picks}
        for level in LEVELS:
            self._gather(level, now, ticks, admits, most, picks, known)
        self._more = self._more and bool(picks)
        return sorted(picks, key=lambda pick: (-pick.level, pick.status)) if known else picks

    def wake_at(self) -> float | None:
        """Return when to check again, in Unix seconds; None if only an event changes anything."""
        if self._more or self._changed:
            return 0.0
        return self._asleep[0][0] if self._asleep else None

    def _gather(
        self,
        level: int,
        now: datetime,
        ticks: float,
        admits: Admits,
        most: int,
        picks: list[Pick],
        known: frozenset[int] | set[int] = frozenset(),
    ) -> None:
        for status in QUEUE_STATUSES:
            place = self._waiting[level, status]
            if not place or not admits(status, 0):
                continue
            for queue in list(islice(place.values(), SCAN)):
                if len(picks) >= most:
                    self._more = True
                    return
                consumer_id = queue.view.id
                if consumer_id in known:
                    continue
                if queue.place(now, ticks) != (level, status):
                    self._changed[consumer_id] = queue  # its status changed: sort it in again
                    self._leave(consumer_id)
                    continue
                if (capacity := queue.capacity(now)) <= 0:
                    self._sleep(queue, queue.wake_at())
                    continue
                room = min(capacity, admits(status, queue.in_flight))
                place[consumer_id] = place.pop(consumer_id)  # behind those that still wait
                if room > 0:
                    picks.append(Pick(queue, level, room, status))
            self._more = self._more or len(place) > SCAN

    def _wake(self, now: datetime, ticks: float) -> None:
        instant = now.timestamp()
        while self._asleep and self._asleep[0][0] <= instant:
            at, consumer_id = heapq.heappop(self._asleep)
            if self._until.get(consumer_id) == at:
                del self._until[consumer_id]
                if consumer_id in self._queues:
                    self._changed[consumer_id] = self._queues[consumer_id]
        noted, self._changed = self._changed, {}
        for consumer_id, queue in noted.items():
            place = queue.place(now, ticks)
            if place is None:
                self._sleep(queue, queue.wake_at())
                continue
            if place != self._places.get(consumer_id):
                self._leave(consumer_id)
                self._places[consumer_id] = place
                self._waiting[place][consumer_id] = queue
            # A more urgent delivery that is due later changes its place at that time.
            level, _ = place
            if rises := [due for known, due in queue.due.items() if known > level]:
                self._wake_later(consumer_id, (min(rises) - LEAD).timestamp())

    def _sleep(self, queue: ConsumerQueue, at: float | None) -> None:
        self._leave(queue.view.id)
        if at is not None:
            self._wake_later(queue.view.id, at)

    def _wake_later(self, consumer_id: int, at: float) -> None:
        if at < self._until.get(consumer_id, float("inf")):
            self._until[consumer_id] = at
            heapq.heappush(self._asleep, (at, consumer_id))
            if len(self._asleep) > 2 * len(self._until) + MAX_SCANNED:
                self._asleep = [(at, consumer_id) for consumer_id, at in self._until.items()]
                heapq.heapify(self._asleep)

    def _leave(self, consumer_id: int) -> None:
        place = self._places.pop(consumer_id, None)
        if place is not None:
            del self._waiting[place][consumer_id]
