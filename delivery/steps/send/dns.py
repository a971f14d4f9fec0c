"""Resolve host names to addresses: one lookup per name at a time, each in its own thread.

libcurl would resolve names itself, but in twenty threads that all transfers share: ten consumers
with unresponsive name servers held up every other new name for ten seconds. Here such a name costs
one waiting thread and delays only its own calls.
"""

import functools
import heapq
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar
from urllib.parse import urlsplit

FRESH_S = 60.0
"""Seconds after which a name in use is resolved again."""
MAX_THREADS = 256

Waiter = TypeVar("Waiter")
Place: TypeAlias = tuple[str, int]
"""Host name and port."""

_PORTS = {"http": 80, "https": 443}


@dataclass(slots=True)
class Known:
    """The result of the last lookup of a name."""

    addresses: list[str]
    """Numeric, in the order in which to try them."""
    stale_at: float
    told: bool = False
    """Whether libcurl has the addresses."""


@dataclass(frozen=True, slots=True)
class Served(Generic[Waiter]):
    """A waiter whose lookup has ended."""

    waiter: Waiter
    place: Place
    finding: Known | str
    """The addresses, or an error text."""
    waited_ms: int


@functools.lru_cache(maxsize=8192)
def place_of(url: str) -> Place | None:
    """Return the host and port to resolve; None for addresses, which need no lookup."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    last_label = host.rstrip(".").rpartition(".")[2]
    # Numbers in any notation, and names that libcurl treats as loopback (RFC 6761 6.3).
    if port is None or not last_label or ":" in host or last_label == "localhost":
        return None
    return None if last_label[0].isdigit() else (host, port)


class Names(Generic[Waiter]):
    """Resolves names and keeps track of the waiters. The caller must use it from one thread.

    The file descriptor `fd` becomes readable when `collect` has results.
    """

    def __init__(self) -> None:
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self.fd = self._ear.fileno()
        self._known: dict[Place, Known] = {}
        self._asked: set[Place] = set()
        self._unasked: deque[Place] = deque()
        self._threads = 0
        self._found: deque[tuple[Place, list[str] | str]] = deque()
        self._waiting: dict[int, tuple[Waiter, Place, float]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._ticket = 0

    def __len__(self) -> int:
        """Number of waiters."""
        return len(self._waiting)

    def known(self, place: Place) -> Known | None:
        """Return the cached result for a name; None if the caller must wait for it.

        An old result is used while it is being renewed, and dropped if that fails.
        """
        known = self._known.get(place)
        if known is not None and known.stale_at < time.monotonic():
            self._ask(place)
        return known

    def wait(self, waiter: Waiter, place: Place, seconds: float) -> None:
        """Resolve a name for a waiter that gives up after so many seconds."""
        now = time.monotonic()
        self._ticket += 1
        self._waiting[self._ticket] = (waiter, place, now)
        heapq.heappush(self._deadlines, (now + seconds, self._ticket))
        self._ask(place)

    def next_deadline(self) -> float | None:
        """Return when (`time.monotonic`) the next waiter gives up."""
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def collect(self) -> list[Served[Waiter]]:
        """Return the waiters whose lookups have ended."""
        with suppress(BlockingIOError):
            self._ear.recv(4096)
        served: list[Served[Waiter]] = []
        while self._found:
            place, finding = self._found.popleft()
            outcome = self._learn(place, finding)
            tickets = [key for key, (_, wanted, _) in self._waiting.items() if wanted == place]
            served += [self._serve(ticket, outcome) for ticket in tickets]
        now = time.monotonic()
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            served.append(self._serve(self._deadlines[0][1], "no answer in time"))
        return served

    def dismiss(self, wanted: Callable[[Waiter], bool] = lambda _: True) -> list[Waiter]:
        """Remove and return the ``wanted`` waiters whose lookups have not ended."""
        tickets = [ticket for ticket, (waiter, *_) in self._waiting.items() if wanted(waiter)]
        return [self._waiting.pop(ticket)[0] for ticket in tickets]

    def close(self) -> None:
        """Stop listening; the results of lookups in progress are ignored."""
        self._ear.close()
        self._bell.close()

    def _serve(self, ticket: int, finding: Known | str) -> Served[Waiter]:
        waiter, place, since = self._waiting.pop(ticket)
        return Served(waiter, place, finding, round((time.monotonic() - since) * 1000))

    def _learn(self, place: Place, finding: list[str] | str) -> Known | str:
        self._threads -= 1
        self._asked.discard(place)
        if self._unasked:
            self._start(self._unasked.popleft())
        if isinstance(finding, str):
            self._known.pop(place, None)
            return finding
        known = self._known[place] = Known(finding, time.monotonic() + FRESH_S)
        return known

    def _ask(self, place: Place) -> None:
        if place in self._asked:
            return
        self._asked.add(place)
        if self._threads < MAX_THREADS:
            self._start(place)
        else:
            self._unasked.append(place)

    def _start(self, place: Place) -> None:
        self._threads += 1
        threading.Thread(target=self._look_up, args=(place,), daemon=True).start()

    def _look_up(self, place: Place) -> None:
        """Look up a name in a thread; store a result and signal it in every case."""
        finding: list[str] | str
        try:
            entries = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
            # Without the zone of a link-local address, which names a network interface.
            ips = [str(entry[4][0]).partition("%")[0] for entry in entries]
            finding = list(dict.fromkeys(ips))
        except OSError as error:
            finding = error.strerror or "the lookup failed"
        except UnicodeError:
            finding = "it is not a host name"
        self._found.append((place, finding))
        # A full socket has been signalled already, a closed one has no listener any more.
        with suppress(OSError):
            self._bell.send(b"\0")
