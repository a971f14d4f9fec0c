"""Limit how many threads wait for request bodies: of one sender, and of all."""

import sys
import threading
import time
from collections.abc import Hashable

PAUSES_S = tuple(0.00025 * 2.0**number for number in range(10))
"""Who finds no place looks again after each of them: a quarter of a second in all."""
MAX_WAIT_S = sum(PAUSES_S)


class ConcurrencyLimit:
    """A number of places, of which nobody may have more than are left for the others.

    Alone one gets half of them, the next one half of the rest: it takes many who do not know each
    other until a stranger to them finds none. Who sends at a normal pace gives a place back within
    microseconds, and is waited for a moment; who sits on all his places is refused at once, for
    that wait takes a thread as well.
    """

    def __init__(self, count: int = sys.maxsize) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._held: dict[Hashable, tuple[int, float]] = {}
        """How many each one has, and when the last of them was taken."""
        self._taken_at = float("-inf")

    def limit(self, count: int) -> None:
        """Have so many, from the start: nobody may hold one yet."""
        self._free = count

    def take(self, owner: Hashable, *, waits: bool = True) -> bool:
        """Take one, to be given back; False where there is none, and will be none soon."""
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
        """One of those that were taken for the same owner."""
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
        # Nobody who took his last place long ago is about to leave it.
        with self._lock:
            _, at = self._held.get(owner, (0, self._taken_at))
        return time.monotonic() - at < MAX_WAIT_S


bodies = ConcurrencyLimit()
"""For the bodies of callers with a key; without a limit until the web server says how many."""
