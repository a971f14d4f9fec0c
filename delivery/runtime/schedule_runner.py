"""Fire schedules on time, in a thread beside the sweeps.

Sweeps take turns, and one that deletes old rows may delay the others; a message that is due every
half second cannot wait for them. Each maintenance process has a schedule runner; the lock on a
schedule's row decides which of them fires it.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime

from django.db import Error as DatabaseFailure
from django.db import close_old_connections, connection

from channels_app import clock
from channels_app.change_marker import change_marker
from delivery.runtime import recurring
from delivery.steps import occurrences

logger = logging.getLogger(__name__)

POLL_S = 1.0
"""Interval of queries with nothing due, which find changes made by other hosts."""
PEEK_INTERVAL_S = 0.2
"""Interval of checks for configuration changes on this host, which cost very little."""
REST_S = 0.01
"""Shortest pause when another process holds what is due."""
RETRY_S = 1.0


class ScheduleRunner(threading.Thread):
    """Runs until told to stop; errors are logged, and the work is tried again."""

    def __init__(self, wait: Callable[[float], bool]) -> None:
        """``wait`` sleeps for some seconds; it returns True, at once, when the process stops."""
        super().__init__(name="schedule-runner", daemon=True)
        self._wait = wait
        self._ended = threading.Event()

    def stop(self) -> None:
        """Stop, and wait for the current write."""
        self._ended.set()
        self.join(5.0)

    def run(self) -> None:
        """Fire and sleep until the next occurrence, in a loop."""
        while not (self._ended.is_set() or self._wait(0.0)):
            try:
                mark = change_marker.mark()
                self._sleep_until(self.turn(), mark)
            except DatabaseFailure as error:
                logger.warning("database unavailable, schedules wait: %s", error)
                close_old_connections()
                self._pause(RETRY_S)
            except Exception:
                # The sweep is the fallback; no error may end this thread.
                logger.exception("publishing due schedules failed")
                self._pause(RETRY_S)
        connection.close()

    def turn(self) -> datetime | None:
        """Fire all that is due; return when the next occurrence is."""
        while (next_at := occurrences.next_at()) is not None and next_at <= clock.now():
            if self._ended.is_set() or not recurring.fire_due():
                break  # another process handles it
        return next_at

    def _sleep_until(self, next_at: datetime | None, mark: tuple[int, int]) -> None:
        began = time.monotonic()
        while not self._ended.is_set() and change_marker.mark() == mark:
            left = began + POLL_S - time.monotonic()
            if next_at is not None:
                left = min(left, (next_at - clock.now()).total_seconds())
            if left <= 0:
                break
            if self._wait(min(left, PEEK_INTERVAL_S)):
                return
        if next_at is not None and next_at <= clock.now() and time.monotonic() - began < REST_S:
            self._pause(REST_S)

    def _pause(self, seconds: float) -> None:
        self._wait(seconds)
