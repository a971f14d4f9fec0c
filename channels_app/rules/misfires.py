"""Decide which late occurrences of a schedule still fire."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

FIRE_ONCE, FIRE_ALL, SKIP = "fire_once", "fire_all", "skip"
GRACE = timedelta(seconds=60)
"""An occurrence up to this late counts as on time, so that a restart does not skip one."""
MAX_SKIPPED = 2000
"""Limit of occurrences per call: after a week, a schedule of 1 s has missed 600,000."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What to do for one schedule now."""

    occurrence: datetime | None
    """The occurrence to fire now; None: none."""
    missed: int
    """Occurrences before it that are skipped."""
    next_at: datetime | None
    """The next occurrence to check, possibly due already; None: there is none."""


def turn(
    next_at: datetime,
    now: datetime,
    misfire: str,
    after: Callable[[datetime], datetime | None],
) -> Turn:
    """The oldest occurrence from ``next_at`` on that is due and still fires.

    An occurrence that is more than GRACE late is a misfire. With ``fire_all`` it fires all the
    same, with ``skip`` it does not, and with ``fire_once`` only the last misfire fires.
    """
    at: datetime | None = next_at
    for missed in range(MAX_SKIPPED):
        if at is None or at > now:
            return Turn(None, missed, at)
        following = after(at)
        if _happens(at, following, now, misfire):
            return Turn(at, missed, following)
        at = following
    return Turn(None, MAX_SKIPPED, at)


def _happens(at: datetime, following: datetime | None, now: datetime, misfire: str) -> bool:
    if misfire == FIRE_ALL or now - at <= GRACE:
        return True
    return misfire == FIRE_ONCE and (following is None or now - following <= GRACE)
