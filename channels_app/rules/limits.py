"""Limits: rates as GCRA (one number of memory, exact, nothing to refill), own ones within ours."""

from dataclasses import dataclass

# Unix seconds as floats lie this far apart, so each event of a burst may be off by half of it.
_RESOLUTION_S = 2.4e-7


@dataclass(frozen=True, slots=True)
class Rate:
    """``per_second`` on average, and up to ``burst`` at once."""

    per_second: float
    burst: int

    @property
    def interval(self) -> float:
        """Seconds that one event uses up."""
        return 1.0 / self.per_second

    @property
    def tolerance(self) -> float:
        """Seconds that events may run ahead of the average."""
        return self.interval * (max(self.burst, 1) - 1)


def within(own: int | None, most: int) -> int:
    """A limit of somebody's own, where there is one, within that of the installation."""
    return min(own or most, most)


def decide(arrival: float, now: float, rate: Rate) -> tuple[bool, float, float]:
    """Whether one event may happen at ``now`` (Unix seconds).

    ``arrival`` is the theoretical arrival time that the last decision returned, 0 at first.
    Returns (allowed, the new theoretical arrival time, seconds to wait when refused).
    """
    earliest = max(arrival, now)
    wait = earliest - rate.tolerance - now
    if wait > _RESOLUTION_S * (rate.burst + 1):
        return False, arrival, wait
    return True, earliest + rate.interval, 0.0
