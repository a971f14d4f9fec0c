"""The one clock that decisions use: the database's, carried forward by this process's own ticks."""

import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.db import Error as DatabaseFailure
from django.db import connection

RESYNC_S = 10.0
RETRY_S = 1.0
"""How long a database that did not answer is not asked again."""


class DatabaseClock:
    """Time of the database without a query for each look.

    The estimate is never ahead of the database, so nothing is judged due before its time. Threads
    share it.
    """

    def __init__(self) -> None:
        self._known: tuple[datetime, float] | None = None
        """The last answer and when it came. One value: no thread sees half of a new pair."""
        self._ask_at = float("-inf")
        self._took_s = 0.0
        """How long the last answer was on its way."""

    def now(self) -> datetime:
        """The database's time in UTC; asks it at most every ``RESYNC_S`` seconds.

        While the database is away the last answer is carried on, so that whoever only wants to
        know the time need not fail. Raises what the database raises before its first answer.
        """
        known = self._known
        if known is None or time.monotonic() > self._ask_at:
            known = self._asked(known)
        base, ticks = known
        return base + timedelta(seconds=time.monotonic() - ticks)

    def sync(self) -> None:
        """Ask the database. The answer was true before it arrived: late is safe, early is not."""
        before = time.monotonic()
        self._known = _ask(), time.monotonic()
        self._took_s = self._known[1] - before
        self._ask_at = time.monotonic() + RESYNC_S

    def drift_s(self) -> float:
        """How far this host's clock is ahead of the database's, without asking: seconds.

        0.0 where they may agree, and for SQLite, which has no clock of its own. A step of the
        database's clock shows ``RESYNC_S`` later at most, one of this host's at once.
        """
        if connection.vendor != "mysql":
            return 0.0
        ahead_s = (datetime.now(UTC) - self.now()).total_seconds()
        # The estimate is late by up to the time that the answer took, and never early.
        return ahead_s if ahead_s < 0 else max(0.0, ahead_s - self._took_s)

    def _asked(self, known: tuple[datetime, float] | None) -> tuple[datetime, float]:
        if known is not None:
            # One thread asks; the others, and all of them after a failure, carry on.
            self._ask_at = time.monotonic() + RETRY_S
        try:
            self.sync()
        except DatabaseFailure:
            if known is None:
                raise
        assert self._known is not None
        return self._known


class Offset(NamedTuple):
    """How far this host's clock is ahead of the database's."""

    seconds: float
    error_s: float
    """The answer was true at some instant while it was on its way: half of that time."""

    @property
    def least_s(self) -> float:
        """So much they differ for certain."""
        return max(0.0, abs(self.seconds) - self.error_s)


def offset() -> Offset:
    """Compare the clocks now (S4-31). Nothing is decided by this host's; signatures carry it."""
    connection.ensure_connection()
    before = datetime.now(UTC)
    there = _ask()
    took = datetime.now(UTC) - before
    return Offset((before + took / 2 - there).total_seconds(), took.total_seconds() / 2)


def _ask() -> datetime:
    if connection.vendor != "mysql":
        # SQLite has no clock of its own: it would read this machine's, to the millisecond only.
        return datetime.now(UTC)
    with connection.cursor() as cursor:
        cursor.execute("SELECT UTC_TIMESTAMP(6)")
        (database_now,) = cursor.fetchone()
    instant: datetime = database_now.replace(tzinfo=UTC)
    return instant


_clock = DatabaseClock()
now = _clock.now
sync = _clock.sync
drift_s = _clock.drift_s
