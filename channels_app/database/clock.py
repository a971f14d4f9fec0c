"""Tell the time of the database, on which every decision is based.

Between two queries the process advances that time by its own monotonic clock.
"""

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.db import Error as DatabaseFailure
from django.db import connection

from channels_app.database import raw
from channels_app.database.raw import dialect

RESYNC_S = 10.0
RETRY_S = 1.0
"""Seconds before the next query after the database did not answer, or slowly."""
STEP = timedelta(seconds=1)
"""A clock that is set back by this or more is followed. Less is usually a late response."""


class Estimate(NamedTuple):
    """What the time is derived from. One tuple, so that no thread mixes an old with a new one."""

    base: datetime
    """Time of a response."""
    ticks: float
    """`time.monotonic` at which it arrived."""
    least: datetime
    """The time stands still here until the base has caught up."""

    def at(self, ticks: float) -> datetime:
        """Return the time at a reading of `time.monotonic`."""
        return max(self.base + timedelta(seconds=ticks - self.ticks), self.least)


class DatabaseClock:
    """Time of the database without a query for each call.

    The estimate is late rather than early, so nothing counts as due too early. It goes back only
    if the database's clock was set back by `STEP`; after a smaller step it is early by as much,
    and stands still until that clock has caught up. Threads share one instance.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._estimate: Estimate | None = None
        self._ask_at = float("-inf")
        self._took_s = 0.0
        """Round-trip time of the last query, in seconds."""

    def now(self) -> datetime:
        """The database's time in UTC. Queries it at most once every ``RESYNC_S`` seconds.

        While the database is unavailable, the last response is advanced further, so that callers
        that only need the time do not fail. Before the first response, raises what the database
        raises.
        """
        estimate = self._estimate
        if estimate is None or time.monotonic() > self._ask_at:
            estimate = self._asked(estimate)
        return estimate.at(time.monotonic())

    def unix_ms(self) -> int:
        """`now` in whole Unix milliseconds, without a datetime: each id contains it."""
        estimate, ticks = self._estimate, time.monotonic()
        if estimate is None or ticks > self._ask_at:
            estimate = self._asked(estimate)
        seconds = estimate.base.timestamp() + ticks - estimate.ticks
        return int(max(seconds, estimate.least.timestamp()) * 1000)

    def sync(self) -> None:
        """Query the database.

        Its time was read before the response arrived, so the estimate may be late, but never early.
        A response that took `STEP` or longer and does not contradict the estimate says less than
        that, and is ignored.
        """
        before = time.monotonic()
        base, ticks = _ask(), time.monotonic()
        took = timedelta(seconds=ticks - before)
        with self._lock:  # another thread may have asked meanwhile
            least = self._estimate.at(ticks) if self._estimate else base
            is_slow = took >= STEP
            if not (is_slow and self._estimate and base <= least <= base + took):
                self._estimate = Estimate(base, ticks, least if least - base < STEP else base)
                self._took_s = took.total_seconds()
        self._ask_at = ticks + (RETRY_S if is_slow else RESYNC_S)

    def drift_s(self) -> float:
        """Seconds by which this host's clock is ahead of the database's.

        Does not query the database. 0.0 if the difference is within the error, and for a database
        without a clock of its own. A step of the database's clock shows after at most
        ``RESYNC_S``, one of this host's at once.
        """
        if not dialect.clock_query:
            return 0.0
        ahead_s = (datetime.now(UTC) - self.now()).total_seconds()
        # The estimate is late by at most the round-trip time.
        return ahead_s if ahead_s < 0 else max(0.0, ahead_s - self._took_s)

    def _asked(self, estimate: Estimate | None) -> Estimate:
        if estimate is not None:
            # One thread queries. The others, and all threads after a failure, use the estimate.
            self._ask_at = time.monotonic() + RETRY_S
        try:
            self.sync()
        except DatabaseFailure:
            if estimate is None:
                raise
        assert self._estimate is not None
        return self._estimate


def elapsed(since: datetime, until: datetime) -> timedelta:
    """Return the time between two readings of the clock, never negative.

    ``until`` can be the earlier one: each process estimates the time by itself, and a clock can be
    set back.
    """
    return max(until - since, timedelta(0))


class Offset(NamedTuple):
    """How far this host's clock is ahead of the database's."""

    seconds: float
    error_s: float
    """Half of the round-trip time: the database read its clock at some instant during it."""

    @property
    def least_s(self) -> float:
        """Lower bound of the difference, in seconds."""
        return max(0.0, abs(self.seconds) - self.error_s)


def offset() -> Offset:
    """Compare the clocks now (S4-31).

    No decision uses this host's clock, but signatures carry it.
    """
    connection.ensure_connection()
    before = datetime.now(UTC)
    there = _ask()
    took = datetime.now(UTC) - before
    return Offset((before + took / 2 - there).total_seconds(), took.total_seconds() / 2)


def _ask() -> datetime:
    if not dialect.clock_query:
        # SQLite would return this host's time, in milliseconds only.
        return datetime.now(UTC)
    ((database_now,),) = raw.read(dialect.clock_query)
    return dialect.instant(database_now)


_clock = DatabaseClock()
now = _clock.now
unix_ms = _clock.unix_ms
sync = _clock.sync
drift_s = _clock.drift_s
