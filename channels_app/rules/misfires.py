"""Misfires: which occurrences of a schedule still happen when they come late, and which do not."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

FIRE_ONCE, FIRE_ALL, SKIP = "fire_once", "fire_all", "skip"
GRACE = timedelta(seconds=60)
"""Up to so late an occurrence is on time: a restart must not cost one."""
MAX_SKIPPED = 2000
"""Occurrences judged at once: after a week a schedule of seconds has missed 600,000."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What is to be done for one schedule now."""

    occurrence: datetime | None
    """To be fired now; None: nothing is."""
    missed: int
    """Occurrences before it that do not happen any more."""
    next_at: datetime | None
    """What is to be looked at next, perhaps due already; None: nothing ever."""


def turn(
    next_at: datetime,
    now: datetime,
    misfire: str,
    after: Callable[[datetime], datetime | None],
) -> Turn:
    """The oldest occurrence from ``next_at`` on that is due and still happens.

    Missed is what is more than GRACE late: with ``fire_all`` it happens all the same, with ``skip``
    not at all, and with ``fire_once`` only the last of them.
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
