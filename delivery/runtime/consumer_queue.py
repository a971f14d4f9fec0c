"""One consumer as its pump sees it: what it may receive now, and what is due."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from channels_app.config_cache import ConsumerConfig
from channels_app.rules.limits import decide
from delivery.conf import conf
from delivery.rules import breaker
from delivery.rules.breaker import Circuit
from delivery.rules.fair_sharing import LEVELS
from delivery.rules.sharding import ALONE, Share

LEAD, AHEAD = timedelta(milliseconds=15), timedelta(milliseconds=30)
"""So long before its time a delivery is claimed and its body read: when it comes nothing is left
to do but to send it. A look that the first one asks for takes those of the next moment along.
Until its time what is claimed has a place, and cannot be moved any more."""
BUSY_S = 0.02
"""Seconds until rows that another worker holds are looked at again."""
BYTE_SHARES = 8
"""One consumer may have this part of all bodies on their way: as with requests, several can hang
at once and leave room for the others."""
GUARD_EVERY = 10
"""Every tenth claim takes the oldest rows whatever their priority (S0-42)."""
PROMPT_S = 0.25
"""Seconds: who answers within them, as a rule, answers promptly. Who has kept a request open for
longer and answered nothing meanwhile hangs."""
MAX_S, RECENT = 4 * PROMPT_S, 4
"""Longest answer as it counts, and how many answers it takes until the usual time has followed
them: who hung for long is prompt again after a few prompt answers."""


class QueueStatus(enum.IntEnum):
    """How a consumer answers, as far as its pump knows."""

    PROMPT = 0
    UNTRIED = 1
    """It has not answered yet, and nothing is on its way to it."""
    OTHER = 2
    """It is slow, it hangs, or its first answer has not come."""


QUEUE_STATUSES = tuple(QueueStatus)


@dataclass(slots=True)
class ConsumerQueue:
    """State of one consumer in the memory of a pump that owns it, or a share of it."""

    view: ConsumerConfig
    """With this pump's part of the limits, where several serve it."""
    circuit: Circuit
    share: Share = ALONE
    in_flight: int = 0
    elsewhere: int = 0
    """Requests that others have on their way and that are not within their parts: a former pump's,
    or those of one that has just had all of it."""
    body_bytes: int = 0
    """Of bodies on their way to it."""
    usual_bytes: float = 0.0
    """Size of its bodies of late."""
    due: dict[int, datetime] = field(default_factory=dict)
    """Earliest instant at which something waits, by priority, as far as known."""
    began: dict[int, float] = field(default_factory=dict)
    """Since when (`time.monotonic`) each of its requests is on its way, the oldest first."""
    answer_s: float | None = None
    """How long its answers took of late; None before the first."""
    answered_at: float = 0.0
    """When (`time.monotonic`) the last one came."""
    arrival: float = 0.0
    """The rate limiter's theoretical arrival time, Unix seconds."""
    ready_at: float = 0.0
    """Not to be looked at before: the rate limiter said so."""
    saved: Circuit = field(default_factory=Circuit)
    """The circuit as it stands in the database."""

    @property
    def next_due(self) -> datetime | None:
        """Earliest instant at which something waits, as far as known; None when nothing does."""
        return min(self.due.values(), default=None)

    def has_due(self, now: datetime) -> bool:
        """Whether something is due, or will be in a moment, as far as known."""
        return self.top_due(now) >= 0

    def top_due(self, now: datetime) -> int:
        """The highest priority of what is due, or will be in a moment; -1 when nothing is."""
        horizon = now + LEAD
        return max((level for level, at in self.due.items() if at <= horizon), default=-1)

    def due_levels(self, now: datetime) -> list[int]:
        """Priorities of which something may be due, the highest first."""
        horizon = now + AHEAD
        return sorted((level for level, at in self.due.items() if at <= horizon), reverse=True)

    def place(self, now: datetime, ticks: float) -> tuple[int, QueueStatus] | None:
        """The highest priority of what is due and how the consumer answers; None: nothing is."""
        level = self.top_due(now)
        return None if level < 0 else (level, self.status(ticks))

    def status(self, ticks: float) -> QueueStatus:
        """How the consumer answers at ``ticks`` (`time.monotonic`)."""
        if self.answer_s is None:
            return QueueStatus.OTHER if self.in_flight else QueueStatus.UNTRIED
        if self.answer_s > PROMPT_S:
            return QueueStatus.OTHER
        since = next(iter(self.began.values()), ticks)
        hangs = ticks - max(since, self.answered_at) > PROMPT_S
        return QueueStatus.OTHER if hangs else QueueStatus.PROMPT

    def answered(self, seconds: float, ticks: float) -> None:
        """Book how long an answer took."""
        seconds = min(seconds, MAX_S)
        known = self.answer_s
        self.answer_s = seconds if known is None else known + (seconds - known) / RECENT
        self.answered_at = ticks

    def capacity(self, now: datetime) -> int:
        """How many deliveries may be taken now, should there be so many."""
        if self.view.halted:
            return 0
        instant = now.timestamp()
        if instant < self.ready_at:
            return 0
        verdict = breaker.may_send(self.circuit, instant)
        if verdict == "no":
            return 0
        open_count = self.in_flight + self.elsewhere
        room = self._most() - open_count
        if verdict == "probe":
            room = min(room, 1 if open_count == 0 else 0)
        return self._within_rate(room, instant) if room > 0 else 0

    def took(self, count: int, now: datetime) -> None:
        """Book ``count`` claimed deliveries."""
        self.in_flight += count
        if self.view.rate:
            for _ in range(count):
                _, self.arrival, _ = decide(self.arrival, now.timestamp(), self.view.rate)

    def asked(self, count: int, left: Mapping[int, datetime], now: datetime) -> None:
        """Book a claim of all that was due: how many it took, and what it left of each priority."""
        for level in self.due_levels(now):
            del self.due[level]
        self.due |= left
        if left and not count:
            self.ready_at = now.timestamp() + BUSY_S  # somebody else holds its rows

    def next_are(self, due: Mapping[int, datetime], now: datetime) -> None:
        """The tables say so, after a claim that left nothing due."""
        self.due = dict(due)
        if self.has_due(now):
            self.ready_at = max(self.ready_at, now.timestamp() + BUSY_S)  # somebody else holds it

    def expect(self, due_at: datetime, level: int | None = None) -> None:
        """Something of that priority will be due at this instant; None: of whatever priority."""
        for known in LEVELS if level is None else (level,):
            if (at := self.due.get(known)) is None or due_at < at:
                self.due[known] = due_at

    def wake_at(self) -> float | None:
        """When to look again, Unix seconds; None when only an event can change anything."""
        full = 1 if self.circuit.state != breaker.CLOSED else self._most()
        if self.view.halted or not self.due or self.in_flight + self.elsewhere >= full:
            return None
        waits = [(min(self.due.values()) - LEAD).timestamp(), self.ready_at]
        if self.circuit.next_probe_at is not None and self.circuit.state != breaker.CLOSED:
            waits.append(self.circuit.next_probe_at)
        if self.circuit.slow_until is not None:
            waits.append(self.circuit.slow_until)
        return max(waits)

    @property
    def most_bytes(self) -> int:
        """Of bodies that may be on their way to it at once, unless it is a single one."""
        return conf().pump_body_bytes // BYTE_SHARES

    def _most(self) -> int:
        """How many may be on their way to it at once, large ones being fewer."""
        fitting = int(self.most_bytes / max(self.usual_bytes, 1.0))
        return min(self.view.max_in_flight, max(1, fitting))

    def _within_rate(self, room: int, instant: float) -> int:
        if self.view.rate is None:
            return room
        arrival, allowed = self.arrival, 0
        while allowed < room:
            fits, arrival, retry_after = decide(arrival, instant, self.view.rate)
            if not fits:
                self.ready_at = instant + retry_after if allowed == 0 else self.ready_at
                break
            allowed += 1
        return allowed
