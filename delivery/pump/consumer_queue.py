"""One consumer in its pump's memory: what it may receive now, and what is due."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from channels_app.core.rate_limits import decide
from channels_app.registry.cache import ConsumerConfig
from delivery.conf import conf
from delivery.core import breaker
from delivery.core.breaker import Circuit
from delivery.core.recipients import ALONE, LEVELS, ConsumerShare

LEAD, AHEAD = timedelta(milliseconds=15), timedelta(milliseconds=30)
"""A delivery is claimed and its body read LEAD before it is due, so that at the due time it only
has to be sent. That claim includes deliveries due within AHEAD. A claimed delivery already counts
as in flight and cannot be moved any more."""
BUSY_S = 0.02
"""Seconds until rows that another worker holds are checked again."""
BYTE_SHARES = 8
"""One consumer may use 1/8 of the bytes in flight, so that several consumers can hang at once and
leave room for the others."""
GUARD_EVERY = 10
"""Every tenth claim takes the oldest rows, whatever their priority (S0-42)."""
PROMPT_S = 0.25
"""Seconds within which a prompt consumer usually answers. A consumer hangs if a request is open for
longer and no response has come meanwhile."""
MAX_S, RECENT = 4 * PROMPT_S, 4
"""Cap on a response time in seconds, and the number of responses over which the average adapts.
After hanging for long, a consumer is prompt again after a few prompt responses."""


class QueueStatus(enum.IntEnum):
    """How promptly a consumer answers, as far as its pump knows."""

    PROMPT = 0
    UNTRIED = 1
    """It has not answered yet, and no request is in flight."""
    OTHER = 2
    """It is slow, hangs, or has its first request in flight."""


QUEUE_STATUSES = tuple(QueueStatus)


@dataclass(slots=True)
class ConsumerQueue:
    """One consumer's state in the memory of a pump that owns it, or a share of it."""

    consumer: ConsumerConfig
    """The configuration, with this pump's share of the limits if several pumps serve it."""
    circuit: Circuit
    share: ConsumerShare = ALONE
    in_flight: int = 0
    elsewhere: int = 0
    """Requests in flight in other pumps beyond their shares: of a former pump, or of one whose
    share has just been reduced."""
    body_bytes: int = 0
    """Bytes of its bodies in flight."""
    usual_bytes: float = 0.0
    """Average size of its latest bodies."""
    due: dict[int, datetime] = field(default_factory=dict)
    """When the earliest known delivery of each priority is due."""
    began: dict[int, float] = field(default_factory=dict)
    """Start (`time.monotonic`) of each open request, oldest first."""
    answer_s: float | None = None
    """Average time of its latest responses; None before the first."""
    answered_at: float = 0.0
    """When (`time.monotonic`) the last response came."""
    has_answered: bool = False
    """Whether this pump has ever had an HTTP status from it."""
    arrival: float = 0.0
    """The rate limiter's theoretical arrival time, Unix seconds."""
    ready_at: float = 0.0
    """Not to be checked before this time, because of the rate limiter."""
    last_failed: int = 0
    """The delivery whose attempt failed last; 0: none. A probe leaves it out."""
    saved: Circuit = field(default_factory=Circuit)
    """The circuit as stored in the database."""

    @property
    def next_due(self) -> datetime | None:
        """When the earliest known delivery is due; None if nothing waits."""
        return min(self.due.values(), default=None)

    def has_due(self, now: datetime) -> bool:
        """Whether a known delivery is due now or within `LEAD`."""
        return self.top_due(now) >= 0

    def top_due(self, now: datetime) -> int:
        """Return the highest priority that is due now or within `LEAD`; -1 if nothing is."""
        horizon = now + LEAD
        return max((level for level, at in self.due.items() if at <= horizon), default=-1)

    def due_levels(self, now: datetime) -> list[int]:
        """Return the priorities that may have due deliveries, highest first."""
        horizon = now + AHEAD
        return sorted((level for level, at in self.due.items() if at <= horizon), reverse=True)

    def place(self, now: datetime, ticks: float) -> tuple[int, QueueStatus] | None:
        """Return the highest due priority and the consumer's status; None if nothing is due."""
        level = self.top_due(now)
        return None if level < 0 else (level, self.status(ticks))

    def status(self, ticks: float) -> QueueStatus:
        """Return the consumer's status at ``ticks`` (`time.monotonic`)."""
        if self.answer_s is None:
            return QueueStatus.OTHER if self.in_flight else QueueStatus.UNTRIED
        if self.answer_s > PROMPT_S:
            return QueueStatus.OTHER
        since = next(iter(self.began.values()), ticks)
        hangs = ticks - max(since, self.answered_at) > PROMPT_S
        return QueueStatus.OTHER if hangs else QueueStatus.PROMPT

    def is_idle(self, now: datetime, ticks: float) -> bool:
        """Whether nothing waits and a new delivery may be sent; False for a slow consumer."""
        is_slow = self.status(ticks) is QueueStatus.OTHER
        return not is_slow and not self.has_due(now) and self.capacity(now) > 0

    def answered(self, seconds: float, ticks: float) -> None:
        """Record a response time."""
        seconds = min(seconds, MAX_S)
        mean_s = self.answer_s
        self.answer_s = seconds if mean_s is None else mean_s + (seconds - mean_s) / RECENT
        self.answered_at = ticks

    def capacity(self, now: datetime) -> int:
        """Return how many deliveries may be claimed now, if there are as many."""
        if self.consumer.halted:
            return 0
        instant = now.timestamp()
        if instant < self.ready_at:
            return 0
        decision = breaker.may_send(self.circuit, instant)
        if decision == "no":
            return 0
        open_count = self.in_flight + self.elsewhere
        room = self._most() - open_count
        if decision == "probe":
            room = min(room, 1 if open_count == 0 else 0)
        return self._within_rate(room, instant) if room > 0 else 0

    def add_claimed(self, count: int, now: datetime) -> None:
        """Record ``count`` claimed deliveries."""
        self.in_flight += count
        if self.consumer.rate:
            for _ in range(count):
                _, self.arrival, _ = decide(self.arrival, now.timestamp(), self.consumer.rate)

    def record_claim(self, count: int, still_due: Mapping[int, datetime], now: datetime) -> None:
        """Record a claim: how many rows it got, and what it left due of each priority."""
        for level in self.due_levels(now):
            del self.due[level]
        self.due |= still_due
        if still_due and not count:
            self.ready_at = now.timestamp() + BUSY_S  # another worker holds its rows

    def set_next_due(self, due: Mapping[int, datetime], now: datetime) -> None:
        """Set the due times that were read after a claim that left nothing due."""
        self.due = dict(due)
        if self.has_due(now):
            self.ready_at = max(self.ready_at, now.timestamp() + BUSY_S)  # another worker holds it

    def expect(self, due_at: datetime, level: int | None = None) -> None:
        """Record that a delivery of a priority is due at this time; None: any priority."""
        for priority in LEVELS if level is None else (level,):
            if (at := self.due.get(priority)) is None or due_at < at:
                self.due[priority] = due_at

    def wake_at(self) -> float | None:
        """Return when to check again, in Unix seconds; None if only an event changes anything."""
        full = 1 if self.circuit.state != breaker.CLOSED else self._most()
        if self.consumer.halted or not self.due or self.in_flight + self.elsewhere >= full:
            return None
        waits = [(min(self.due.values()) - LEAD).timestamp(), self.ready_at]
        if self.circuit.next_probe_at is not None and self.circuit.state != breaker.CLOSED:
            waits.append(self.circuit.next_probe_at)
        if self.circuit.slow_until is not None:
            waits.append(self.circuit.slow_until)
        return max(waits)

    @property
    def avoided(self) -> int:
        """The delivery that a probe takes only if no other one is due; 0: none."""
        return 0 if self.circuit.state == breaker.CLOSED else self.last_failed

    @property
    def most_bytes(self) -> int:
        """Most bytes that may be in flight to it, unless a single body is larger."""
        return conf().pump_body_bytes // BYTE_SHARES

    def _most(self) -> int:
        """Most requests that may be in flight to it; fewer if its bodies are large."""
        fitting = int(self.most_bytes / max(self.usual_bytes, 1.0))
        return min(self.consumer.max_in_flight, max(1, fitting))

    def _within_rate(self, room: int, instant: float) -> int:
        if self.consumer.rate is None:
            return room
        arrival, allowed = self.arrival, 0
        while allowed < room:
            fits, arrival, retry_after = decide(arrival, instant, self.consumer.rate)
            if not fits:
                self.ready_at = instant + retry_after if allowed == 0 else self.ready_at
                break
            allowed += 1
        return allowed
