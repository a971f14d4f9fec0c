"""Compute rate limits with GCRA (one number of state, exact), and check quotas."""

from dataclasses import dataclass
from typing import NamedTuple, Self

# Resolution of Unix seconds as floats. Each event of a burst may be off by half of it.
_RESOLUTION_S = 2.4e-7


@dataclass(frozen=True, slots=True)
class Rate:
    """``per_second`` on average, and up to ``burst`` at once."""

    per_second: float
    burst: int

    @property
    def interval(self) -> float:
        """Seconds between two events at the average rate."""
        return 1.0 / self.per_second

    @property
    def tolerance(self) -> float:
        """Seconds by which events may be ahead of the average rate."""
        return self.interval * (max(self.burst, 1) - 1)


class Usage(NamedTuple):
    """Messages that wait, and the bytes of their bodies."""

    messages: int = 0
    bytes: int = 0

    def __add__(self, other: object) -> "Usage":
        """The sum of both."""
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(self.messages + other.messages, self.bytes + other.bytes)


class LimitUsage(NamedTuple):
    """The used share of one limit, as pages show it."""

    name: str
    used: int
    most: int
    """0: no limit."""
    percent: float
    """At most 100."""


class Quota(NamedTuple):
    """Limits for waiting messages; 0 is no limit."""

    messages: int = 0
    bytes: int = 0

    def excess(self, messages: int, size: int) -> str:
        """The exceeded limit: "messages" or "bytes", or "" for none."""
        if self.messages and messages > self.messages:
            return "messages"
        return "bytes" if self.bytes and size > self.bytes else ""

    def bars(self, used: Usage) -> list[LimitUsage]:
        """One bar for each of the two limits."""
        return [
            LimitUsage(name, amount, limit, min(100.0, 100 * amount / limit) if limit else 0.0)
            for name, limit, amount in zip(self._fields, self, used, strict=True)
        ]

    def share(self, used: Usage) -> float:
        """The larger used share of the two limits; 0.0 without limits, may exceed 1.0."""
        shares = [amount / limit for limit, amount in zip(self, used, strict=True) if limit]
        return max(shares, default=0.0)


class Limit(NamedTuple):
    """A quota with its owner."""

    owner: tuple[str, int]
    """Scope and id: of a channel or a team."""
    name: str
    """For error messages."""
    quota: Quota

    @classmethod
    def of(cls, scope: str, number: int, slug: str, quota: Quota) -> Self | None:
        """The quota of a channel or team; None if it limits nothing."""
        return cls((scope, number), f"the {scope} {slug}", quota) if any(quota) else None


def within(own: int | None, most: int) -> int:
    """An object's own limit, if it has one, reduced to that of the installation."""
    return min(own or most, most)


def decide(arrival: float, now: float, rate: Rate) -> tuple[bool, float, float]:
    """Whether one event may happen at ``now`` (Unix seconds).

    ``arrival`` is the theoretical arrival time that the last decision returned, initially 0.
    Returns (allowed, the new theoretical arrival time, seconds to wait if not allowed).
    """
    earliest = max(arrival, now)
    wait = earliest - rate.tolerance - now
    if wait > _RESOLUTION_S * (rate.burst + 1):
        return False, arrival, wait
    return True, earliest + rate.interval, 0.0
