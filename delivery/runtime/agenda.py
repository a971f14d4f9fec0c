"""Agenda: which lines are worth a look now; the others cost nothing, however many there are."""

import heapq
from collections.abc import Iterable, Mapping
from datetime import datetime

from delivery.runtime.line import Line

FEW = 1000
"""Instants that may be kept in vain: a line that sleeps until late may be woken again and again."""


class Agenda:
    """Lines that something happened to, and the instants at which others want to be looked at."""

    def __init__(self, lines: Mapping[int, Line]) -> None:
        self._lines = lines
        self._awake: dict[int, Line] = {}
        self._asleep: list[tuple[float, int]] = []
        """A heap. What `_until` does not confirm was overtaken by an earlier instant."""
        self._until: dict[int, float] = {}

    def note(self, line: Line) -> None:
        """To be called for whatever may let this line take something, or take it sooner."""
        consumer_id = line.view.id
        if self._lines.get(consumer_id) is line:
            self._awake[consumer_id] = line

    def forget(self, consumer_id: int) -> None:
        """It is another pump's now, or nobody's."""
        self._awake.pop(consumer_id, None)
        self._until.pop(consumer_id, None)

    def awake(self, now: datetime) -> Iterable[Line]:
        """Lines that may have something to take at ``now``."""
        instant = now.timestamp()
        while self._asleep and self._asleep[0][0] <= instant:
            at, consumer_id = heapq.heappop(self._asleep)
            if self._until.get(consumer_id) == at:
                del self._until[consumer_id]
                if consumer_id in self._lines:
                    self._awake[consumer_id] = self._lines[consumer_id]
        return list(self._awake.values())

    def rest(self, line: Line) -> None:
        """Nothing can be taken of this one: let it sleep until time or an event changes that."""
        consumer_id = line.view.id
        self._awake.pop(consumer_id, None)
        at = line.wake_at()
        if at is not None and at < self._until.get(consumer_id, float("inf")):
            self._until[consumer_id] = at
            heapq.heappush(self._asleep, (at, consumer_id))
            if len(self._asleep) > 2 * len(self._until) + FEW:
                self._asleep = [(at, consumer_id) for consumer_id, at in self._until.items()]
                heapq.heapify(self._asleep)

    def wake_at(self, *, unserved: bool = False) -> float | None:
        """When the next line wants to be looked at, Unix seconds; None without an event never.

        ``unserved`` leaves lines out of account that have requests on their way.
        """
        lines = [line for line in self._awake.values() if not (unserved and line.in_flight)]
        instants = [at for line in lines if (at := line.wake_at()) is not None]
        return min([*instants, *(at for at, _ in self._asleep[:1])], default=None)
