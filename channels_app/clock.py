"""The one clock that decisions use: the database's, carried forward by this process's own ticks."""

import threading
import time
from datetime import UTC, datetime, timedelta

from django.db import connection

RESYNC_S = 10.0


class DatabaseClock:
    """Time of the database without a query for each look.

    The estimate is never ahead of the database, so nothing is judged due before its time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._base = datetime.min.replace(tzinfo=UTC)
        self._ticks = float("-inf")

    def now(self) -> datetime:
        """The database's time in UTC; asks it at most every ``RESYNC_S`` seconds."""
        ticks = time.monotonic()
        if ticks - self._ticks > RESYNC_S:
            self.sync()
            ticks = time.monotonic()
        return self._base + timedelta(seconds=ticks - self._ticks)

    def sync(self) -> None:
        """Ask the database. The answer was true before it arrived: late is safe, early is not."""
        base = _ask()
        with self._lock:
            self._base, self._ticks = base, time.monotonic()


def _ask() -> datetime:
    if connection.vendor != "mysql":
        # SQLite has no clock of its own: it would read this machine's, to the millisecond only.
        return datetime.now(UTC)
    with connection.cursor() as cursor:
        cursor.execute("SELECT UTC_TIMESTAMP(6)")
        (instant,) = cursor.fetchone()
    return instant.replace(tzinfo=UTC)  # type: ignore[no-any-return]


_clock = DatabaseClock()
now = _clock.now
sync = _clock.sync
