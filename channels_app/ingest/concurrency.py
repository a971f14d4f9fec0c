"""Share the threads of a web process among requests and senders."""

import sys
import threading
import time
from collections.abc import Hashable

PAUSES_S = tuple(0.00025 * 2.0**number for number in range(10))
"""Pauses before each retry of a sender that finds no free slot: a quarter of a second in all."""
MAX_WAIT_S = sum(PAUSES_S)
TURN_S = 0.0005
"""Seconds after which a thread with a long request lets others run, instead of Python's 5 ms:
accepting a single message beside it takes a dozen turns."""


class ConcurrencyLimit:
    """A number of slots, of which no sender may hold more than remain free for others.

    A single sender gets half of them, the next one half of the rest: only many independent senders
    can exhaust them for a new one. A sender at normal speed releases a slot within microseconds, so
    waiting a moment helps. A sender that has held all its slots for long is refused at once, since
    waiting would use another thread.
    """

    def __init__(self, count: int = sys.maxsize) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._held: dict[Hashable, tuple[int, float]] = {}
        """By owner: how many slots are held, and when the last one was taken."""
        self._taken_at = float("-inf")

    def limit(self, count: int) -> None:
        """Set the number of slots; call it before any is taken."""
        self._free = count

    def take(self, owner: Hashable, *, waits: bool = True) -> bool:
        """Take a slot; False if none is free, and none will be soon.

        Release it with `give_back`.
        """
        if self._take(owner):
            return True
        for pause in PAUSES_S if waits else ():
            if not self._moves(owner):
                return False
            time.sleep(pause)
            if self._take(owner):
                return True
        return False

    def give_back(self, owner: Hashable) -> None:
        """Release one slot of the owner."""
        with self._lock:
            count, at = self._held[owner]
            if count > 1:
                self._held[owner] = (count - 1, at)
            else:
                del self._held[owner]
            self._free += 1

    def _take(self, owner: Hashable) -> bool:
        now = time.monotonic()
        with self._lock:
            count = self._held[owner][0] if owner in self._held else 0
            if count >= self._free:
                return False
            self._held[owner] = (count + 1, now)
            self._taken_at = now
            self._free -= 1
        return True

    def _moves(self, owner: Hashable) -> bool:
        # A holder that took its last slot long ago is not about to release one.
        with self._lock:
            _, at = self._held.get(owner, (0, self._taken_at))
        return time.monotonic() - at < MAX_WAIT_S


class ShortTurns:
    """A context in which the threads of this process take shorter turns.

    For requests that compute for long. At all times, the turns would cost every accepted message
    14 µs of CPU time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._usual_s = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(min(TURN_S, self._usual_s))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                sys.setswitchinterval(self._usual_s)


short_turns = ShortTurns()
bodies = ConcurrencyLimit()
"""Slots for bodies of callers with a key; unlimited until the web server sets a number."""
