"""Line: one consumer as its pump sees it: what it may take now, and what it has waiting."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from channels_app.directory import ConsumerView
from channels_app.rules.backoff import Policy
from channels_app.rules.limits import decide
from delivery.conf import conf
from delivery.rules import breaker
from delivery.rules.breaker import Circuit

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


@dataclass(slots=True)
class Line:
    """State of one consumer in the memory of the one pump that owns it."""

    view: ConsumerView
    circuit: Circuit
    policy: Policy
    in_flight: int = 0
    elsewhere: int = 0
    """Requests that a former pump of it still has on their way."""
    body_bytes: int = 0
    """Of bodies on their way to it."""
    usual_bytes: float = 0.0
    """Size of its bodies of late."""
    next_due: datetime | None = None
    """Earliest instant at which something waits, as far as known; None when nothing does."""
    arrival: float = 0.0
    """The rate limiter's theoretical arrival time, Unix seconds."""
    ready_at: float = 0.0
    """Not to be looked at before: the rate limiter said so."""
    claims: int = 0
    saved: Circuit = field(default_factory=Circuit)
    """The circuit as it stands in the database."""

    def room(self, now: datetime) -> int:
        """How many of the deliveries that are due may be taken now."""
        return self.capacity(now) if self.has_due(now) else 0

    def has_due(self, now: datetime) -> bool:
        """Whether something is due, or will be in a moment, as far as known."""
        return self.next_due is not None and self.next_due - LEAD <= now

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

    def asked(self, count: int, *, drained: bool, now: datetime) -> None:
        """Book a claim that found ``count``."""
        self.claims += 1
        if drained:
            self.next_due = None
        elif not count:
            self.ready_at = now.timestamp() + BUSY_S  # somebody else holds its rows

    def next_is(self, due_at: datetime, now: datetime) -> None:
        """The tables say so, after a claim that left nothing due."""
        self.next_due = due_at
        if self.has_due(now):
            self.ready_at = max(self.ready_at, now.timestamp() + BUSY_S)  # somebody else holds it

    @property
    def oldest_first(self) -> bool:
        """Whether it is the starvation guard's turn."""
        return self.claims % GUARD_EVERY == GUARD_EVERY - 1

    def expect(self, due_at: datetime) -> None:
        """Something will be due at this instant."""
        self.next_due = due_at if self.next_due is None else min(self.next_due, due_at)

    def wake_at(self) -> float | None:
        """When to look again, Unix seconds; None when only an event can change anything."""
        full = 1 if self.circuit.state != breaker.CLOSED else self._most()
        if self.view.halted or self.next_due is None or self.in_flight + self.elsewhere >= full:
            return None
        waits = [(self.next_due - LEAD).timestamp(), self.ready_at]
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
