"""Ready consumers: those with something to claim now, most urgent first; others cost nothing."""

import heapq
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from delivery.rules.fair_sharing import LEVELS
from delivery.runtime.consumer_queue import LEAD, QUEUE_STATUSES, ConsumerQueue, QueueStatus

MAX_SCANNED = 1000
"""Instants that may be kept in vain: a line that sleeps until late may be woken again and again."""
SCAN = 100
"""Lines of one place that a look passes at most: with thousands it goes round among them."""

Admits = Callable[[QueueStatus, int], int]
"""How many requests a line of that standing may open that has so many open already."""


class Pick(NamedTuple):
    """A line that may take something now."""

    queue: ConsumerQueue
    level: int
    """The highest priority of what it has due."""
    room: int
    """How many deliveries it may take."""
    status: QueueStatus


class ReadyConsumers:
    """Lines that have something due, by priority and standing, and those that sleep until later.

    Among lines of one priority and standing it is the one that waited longest that comes next.
    """

    def __init__(self, queues: Mapping[int, ConsumerQueue]) -> None:
        self._lines = queues
        self._noted: dict[int, ConsumerQueue] = {}
        """Something happened to them since the last look."""
        self._waiting: dict[tuple[int, QueueStatus], dict[int, ConsumerQueue]] = {
            (level, status): {} for level in LEVELS for status in QUEUE_STATUSES
        }
        self._places: dict[int, tuple[int, QueueStatus]] = {}
        self._asleep: list[tuple[float, int]] = []
        """A heap. What `_until` does not confirm was overtaken by an earlier instant."""
        self._until: dict[int, float] = {}
        self._more = False
        """Whether the last look left lines that it might have taken."""

    def note(self, queue: ConsumerQueue) -> None:
        """To be called for whatever may let this line take something, or take it sooner."""
        consumer_id = queue.view.id
        if self._lines.get(consumer_id) is queue:
            self._noted[consumer_id] = queue

    def forget(self, consumer_id: int) -> None:
        """It is another pump's now, or nobody's."""
        self._noted.pop(consumer_id, None)
        self._until.pop(consumer_id, None)
        self._leave(consumer_id)

    @property
    def waiting_count(self) -> int:
        """Lines that had something due at the last look, and may take it once there is room."""
        return len(self._places)

    def top(self) -> int:
        """The highest priority that any of those waits with; 0 when none does."""
        return next((level for (level, _), place in self._waiting.items() if place), 0)

    def gather(
        self, now: datetime, ticks: float, admits: Admits, most: int, *, from_below: bool = False
    ) -> list[Pick]:
        """Up to ``most`` lines that may take something, the most urgent first.

        ``from_below`` takes half of them from the other end, which the starvation guard asks for.
        A line that may take nothing for a reason of its own sleeps until that changes.
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
        """When to look again, Unix seconds; None when only an event can change anything."""
        if self._more or self._noted:
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
                    self._noted[consumer_id] = queue  # it began to hang: the next look knows
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
                if consumer_id in self._lines:
                    self._noted[consumer_id] = self._lines[consumer_id]
        noted, self._noted = self._noted, {}
        for consumer_id, queue in noted.items():
            place = queue.place(now, ticks)
            if place is None:
                self._sleep(queue, queue.wake_at())
                continue
            if place != self._places.get(consumer_id):
                self._leave(consumer_id)
                self._places[consumer_id] = place
                self._waiting[place][consumer_id] = queue
            # What is more urgent and due later gives it another place then.
            level, _ = place
            if rises := [due for known, due in queue.due.items() if known > level]:
                self._alarm(consumer_id, (min(rises) - LEAD).timestamp())

    def _sleep(self, queue: ConsumerQueue, at: float | None) -> None:
        self._leave(queue.view.id)
        if at is not None:
            self._alarm(queue.view.id, at)

    def _alarm(self, consumer_id: int, at: float) -> None:
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
