"""Wait in the main thread for what a signal handler sets."""

from __future__ import annotations

import threading
import time

WAKE_S = 0.5
"""Seconds after which a waiting thread runs the handlers of signals that did not wake it."""


def wait_until_set(event: threading.Event, seconds: float = float("inf")) -> bool:
    """Wait until ``event`` is set, at most so many seconds; return whether it is set.

    For the thread that runs signal handlers. `threading.Event.wait` sleeps on if a signal arrives
    just before it begins to sleep, or at another thread. And a handler that interrupts it while it
    holds the event's lock would wait for that lock for ever.
    """
    end = time.monotonic() + seconds
    while not event.is_set() and (left_s := end - time.monotonic()) > 0:
        time.sleep(min(left_s, WAKE_S))
    return event.is_set()
