"""Circles: the workers that share a pull consumer's keys, as this process knows them."""

import threading
import time
from datetime import datetime, timedelta

from channels_app import clock
from delivery.steps import sharing

MIN_STAY_S = 30.0
"""Longer than a call may wait for a message: who asks again and again is never thought gone."""
MAX_STAY_S = 300.0
"""Keys of one that is gone do not wait longer for it, however long its lease would be."""
JOIN_INTERVAL_S = 2.0
SCAN_INTERVAL_S = 1.0
"""How soon a worker is known to processes that it does not ask."""
MAX_KEPT = 10_000


class StickyKeys:
    """One circle for each consumer. Threads share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Ask the tables again."""
        self._joined: dict[int, float] = {}
        self._known: dict[int, tuple[float, dict[int, datetime]]] = {}

    def around(self, owner: int, consumer_id: int, worker: str, lease_ms: int) -> list[int]:
        """The workers that share the consumer's keys now, ``owner`` among them from now on.

        It stays until it could have worked off what it is about to take, and then as long as it
        asks: who is gone is missed when its leases end.
        """
        now, ticks = clock.now(), time.monotonic()
        if ticks - self._joined.get(owner, float("-inf")) >= JOIN_INTERVAL_S:
            stay = min(max(lease_ms / 1000, MIN_STAY_S), MAX_STAY_S)
            sharing.join(owner, consumer_id, worker, now, now + timedelta(seconds=stay))
            with self._lock:
                if len(self._joined) + len(self._known) > MAX_KEPT:
                    self.forget()
                self._joined[owner] = ticks
        read_at, known = self._known.get(consumer_id, (float("-inf"), {}))
        if ticks - read_at >= SCAN_INTERVAL_S or owner not in known:
            known = sharing.members(consumer_id, now)
            self._known[consumer_id] = ticks, known
        return [one for one, until in known.items() if until > now]


circles = StickyKeys()
