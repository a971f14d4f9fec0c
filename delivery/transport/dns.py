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
from typing import Generic, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit

FRESH_S = 60.0
"""Seconds after which a name in use is resolved again."""
MAX_THREADS = 256
GRACE_S = 600.0
"""Seconds without an answer about one name, while the resolver answers about others, after which
the name servers of that name are to blame and no longer this host's resolver."""

Waiter = TypeVar("Waiter")
Place: TypeAlias = tuple[str, int]
"""Host name and port."""

_PORTS = {"http": 80, "https": 443}
_NO_ANSWER = {socket.EAI_AGAIN, socket.EAI_MEMORY}


@dataclass(slots=True)
class CachedAddresses:
    """The result of the last lookup of a name."""

    addresses: list[str]
    """Numeric, in the order in which to try them."""
    stale_at: float
    in_libcurl: bool = False
    """Whether libcurl has the addresses."""


class LookupFailure(NamedTuple):
    """Why a name has no addresses."""

    text: str
    is_local: bool
    """Whether the resolver of this host gave no answer. An unknown name is an answer."""


@dataclass(frozen=True, slots=True)
class LookupResult(Generic[Waiter]):
    """A waiter whose lookup has ended."""

    waiter: Waiter
    place: Place
    result: CachedAddresses | LookupFailure
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
        self._signal_sender, self._signal_receiver = socket.socketpair()
        self._signal_sender.setblocking(False)
        self._signal_receiver.setblocking(False)
        self.fd = self._signal_receiver.fileno()
        self._cache: dict[Place, CachedAddresses] = {}
        self._in_progress: dict[Place, bool] = {}
        """Whether only this name has had no answer for long, as known when its lookup began."""
        self._answered_at = float("-inf")
        """When the resolver last answered about any name."""
        self._unanswered_since: dict[Place, float] = {}
        self._queued: deque[Place] = deque()
        self._threads = 0
        self._ended: deque[tuple[Place, list[str] | LookupFailure]] = deque()
        self._waiting: dict[int, tuple[Waiter, Place, float]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._ticket = 0

    def __len__(self) -> int:
        """Number of waiters."""
        return len(self._waiting)

    def cached(self, place: Place) -> CachedAddresses | None:
        """Return the cached result for a name; None if the caller must wait for it.

        An old result is used while it is being renewed, and dropped if that fails.
        """
        cached = self._cache.get(place)
        if cached is not None and cached.stale_at < time.monotonic():
            self._request_lookup(place)
        return cached

    def wait(self, waiter: Waiter, place: Place, seconds: float) -> None:
        """Resolve a name for a waiter that gives up after so many seconds."""
        now = time.monotonic()
        self._ticket += 1
        self._waiting[self._ticket] = (waiter, place, now)
        heapq.heappush(self._deadlines, (now + seconds, self._ticket))
        self._request_lookup(place)

    def next_deadline(self) -> float | None:
        """Return when (`time.monotonic`) the next waiter gives up."""
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def collect(self) -> list[LookupResult[Waiter]]:
        """Return the waiters whose lookups have ended."""
        with suppress(BlockingIOError):
            self._signal_receiver.recv(4096)
        results: list[LookupResult[Waiter]] = []
        while self._ended:
            place, result = self._ended.popleft()
            outcome = self._store(place, result)
            tickets = [key for key, (_, wanted, _) in self._waiting.items() if wanted == place]
            results += [self._end_wait(ticket, outcome) for ticket in tickets]
        now = time.monotonic()
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            ticket = self._deadlines[0][1]
            failure = self._unanswered(self._waiting[ticket][1], "no answer in time")
            results.append(self._end_wait(ticket, failure))
        return results

    def remove(self, wanted: Callable[[Waiter], bool] = lambda _: True) -> list[Waiter]:
        """Remove and return the ``wanted`` waiters whose lookups have not ended."""
        tickets = [ticket for ticket, (waiter, *_) in self._waiting.items() if wanted(waiter)]
        return [self._waiting.pop(ticket)[0] for ticket in tickets]

    def close(self) -> None:
        """Stop listening; the results of lookups in progress are ignored."""
        self._signal_receiver.close()
        self._signal_sender.close()

    def _end_wait(
        self, ticket: int, result: CachedAddresses | LookupFailure
    ) -> LookupResult[Waiter]:
        waiter, place, since = self._waiting.pop(ticket)
        return LookupResult(waiter, place, result, round((time.monotonic() - since) * 1000))

    def _store(
        self, place: Place, result: list[str] | LookupFailure
    ) -> CachedAddresses | LookupFailure:
        self._threads -= 1
        if isinstance(result, LookupFailure) and result.is_local:
            result = self._unanswered(place, result.text)
        else:
            self._answered_at = time.monotonic()
            self._unanswered_since.pop(place, None)
        del self._in_progress[place]
        if self._queued:
            self._start(self._queued.popleft())
        if isinstance(result, LookupFailure):
            self._cache.pop(place, None)
            return result
        cached = self._cache[place] = CachedAddresses(result, time.monotonic() + FRESH_S)
        return cached

    def _unanswered(self, place: Place, text: str) -> LookupFailure:
        self._unanswered_since.setdefault(place, time.monotonic())
        return LookupFailure(text, is_local=not self._in_progress[place])

    def _request_lookup(self, place: Place) -> None:
        if place in self._in_progress:
            return
        since = self._unanswered_since.get(place)
        # Judged before the lookup: at the end of an outage other names may be answered first.
        self._in_progress[place] = (
            since is not None and time.monotonic() - since >= GRACE_S and self._answered_at > since
        )
        if self._threads < MAX_THREADS:
            self._start(place)
        else:
            self._queued.append(place)

    def _start(self, place: Place) -> None:
        self._threads += 1
        threading.Thread(target=self._look_up, args=(place,), daemon=True).start()

    def _look_up(self, place: Place) -> None:
        """Look up a name in a thread; store a result and signal it in every case."""
        result: list[str] | LookupFailure
        try:
            entries = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
            # Without the zone of a link-local address, which names a network interface.
            ips = [str(entry[4][0]).partition("%")[0] for entry in entries]
            result = list(dict.fromkeys(ips))
        except OSError as error:
            # Any error but the resolver's own codes comes from this host: no file descriptor left.
            is_local = not isinstance(error, socket.gaierror) or error.errno in _NO_ANSWER
            result = LookupFailure(error.strerror or "the lookup failed", is_local)
        except UnicodeError:
            result = LookupFailure("it is not a host name", is_local=False)
        self._ended.append((place, result))
        # A full socket has been signalled already, a closed one has no listener any more.
        with suppress(OSError):
            self._signal_sender.send(b"\0")
