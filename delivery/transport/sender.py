"""Send many calls on one thread, with libcurl's multi interface on an epoll of its own."""

import select
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import certifi
import pycurl

from channels_app.core.networks import Networks
from delivery.core.outcome import Outcome
from delivery.transport import dns, errors
from delivery.transport.dns import CachedAddresses, Names, Place
from delivery.transport.handle import Call, CallRefused, Handle, Limits, Response

_EVENTS = {
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}
LARGE_BODY = 16 * 1024
"""Bytes up to which a body is never held back: they mostly arrive with the headers."""
_MAX_URLS = 1000


class Transport(Protocol):
    """What carries deliveries to consumers. Not thread-safe: it belongs to one loop.

    The loop must call `ready` when `fileno` is readable, and `on_timer` once `next_timeout` has
    passed, and takes responses with `take`. A call is known by its ``key``.
    """

    @property
    def in_flight(self) -> int:
        """Number of calls started whose responses were not taken yet."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something to do."""

    def start(self, call: Call) -> None:
        """Begin a call."""

    def ready(self, seconds: float | None = 0.0) -> None:
        """Do what can be done now, or within ``seconds``."""

    def next_timeout(self) -> float | None:
        """Return the seconds until `on_timer` is needed; None if it is not."""

    def on_timer(self) -> None:
        """Do what is due."""

    def take(self) -> list[Response]:
        """Return the responses since the last call."""

    def recall(self, wanted: Callable[[int], bool]) -> list[int]:
        """Take back calls that are not on the wire yet; return their keys."""

    def abort_all(self) -> list[int]:
        """End all calls; return their keys."""

    def close(self) -> None:
        """Free all connections."""


class Sender:
    """The transport over HTTP.

    Connections are kept open and reused by address; ``max_connections`` is their maximum,
    including busy ones, above which the least recently used one is closed.

    The sender connects only to addresses that `may_call` permits with the ``allowed`` networks.
    ``ca_file`` (PEM) replaces the host's certificate authorities. A response is read up to
    ``max_response_bytes``, and its first ``excerpt_bytes`` are kept.
    """

    def __init__(
        self,
        *,
        allowed: Networks,
        excerpt_bytes: int,
        max_response_bytes: int,
        ca_file: str | None = None,
        max_connections: int = 1024,
    ) -> None:
        self._limits = Limits(
            allowed, excerpt_bytes, max_response_bytes, ca_file or _machines_cas()
        )
        # An epoll of its own inside the loop's: the standard library's selectors take longer to
        # register and report a socket than the kernel does, and libcurl registers one for every
        # call.
        self._epoll = select.epoll()
        self._watched: dict[int, int] = {}
        self._due: float | None = None
        self._idle: list[Handle] = []
        self._busy: dict[Any, Handle] = {}
        self._done: list[Response] = []
        self._names: Names[Handle] = Names()
        self._early = EarlyAnswers()
        self._epoll.register(self._names.fd, select.EPOLLIN)
        self._not_in_libcurl: list[CachedAddresses] = []
        self._max_idle_handles = max_connections
        self._connected = False
        self._dummy_handle = pycurl.Curl()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer_change)
        self._multi.setopt(pycurl.M_PIPELINING, pycurl.PIPE_MULTIPLEX)
        self._multi.setopt(pycurl.M_MAXCONNECTS, max_connections)

    @property
    def in_flight(self) -> int:
        """Number of calls started whose responses were not taken yet."""
        return len(self._busy) + len(self._done) + len(self._names)

    def start(self, call: Call) -> None:
        """Start one call; it is sent at the next `on_timer`.

        Never raises because of the call's contents: if it cannot be sent, `take` returns its
        response.
        """
        handle = self._idle.pop() if self._idle else self._new_handle()
        try:
            handle.load(call, expects=self._early.awaits(call))
        except CallRefused as refusal:
            self._done.append(_unsent(call, Outcome.PROTOCOL_ERROR, str(refusal), 0))
            self._idle.append(handle)
            return
        place = dns.place_of(call.url)
        if place is None:
            self._add(handle)
        elif (cached := self._names.cached(place)) is not None:
            self._add_resolved(handle, place, cached)
        else:
            limit_ms = min(call.timeout_ms, call.connect_timeout_ms)
            self._names.wait(handle, place, limit_ms / 1000)

    def fileno(self) -> int:
        """Return the file descriptor to watch: readable while `ready` has something to do."""
        return self._epoll.fileno()

    def ready(self, seconds: float | None = 0.0) -> None:
        """Process network events; wait up to ``seconds`` for the first if given."""
        for fd, events in self._epoll.poll(seconds):
            # An earlier event of this round may have made libcurl release this socket.
            if fd in self._watched:
                self._multi.socket_action(fd, _action(events))
            elif fd == self._names.fd:
                self._resume()
        self._call_the_waiting()

    def next_timeout(self) -> float | None:
        """Return the seconds until `on_timer` must be called; None if nothing is due."""
        if self._done or self._due == 0.0:
            return 0.0
        due = self._names.next_deadline()
        if due is None or (self._due is not None and self._due < due):
            due = self._due
        return None if due is None else max(due - time.monotonic(), 0.0)

    def on_timer(self) -> None:
        """Start added calls and end those that have timed out, if the time for it has come."""
        now = time.monotonic()
        deadline = self._names.next_deadline()
        if deadline is not None and deadline <= now:
            self._resume()
        if self._due is not None and self._due <= now:
            self._due = None
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
            # The added calls have begun, so libcurl has read the addresses of their names.
            for cached in self._not_in_libcurl:
                cached.in_libcurl = True
            self._not_in_libcurl.clear()
            self._call_the_waiting()

    def take(self) -> list[Response]:
        """Return the responses of calls that have ended since the last time."""
        answers, self._done = self._done, []
        queued = 1
        while queued:
            queued, whole, failed = self._multi.info_read()
            answers += [self._finish(curl, 0, "") for curl in whole]
            answers += [self._finish(curl, code, detail) for curl, code, detail in failed]
        return answers

    def abort_all(self) -> list[int]:
        """Abort every call that has not ended; return their keys. Take ended ones separately.

        A consumer may have received an aborted call.
        """
        self._done = self.take()
        waiting, busy = self._names.remove(), list(self._busy.values())
        keys = [handle.call.key for handle in waiting + busy]
        self._not_in_libcurl.clear()
        for handle in busy:
            self._release(handle)
        for handle in waiting:
            self._put_back(handle)
        return keys

    def recall(self, wanted: Callable[[int], bool]) -> list[int]:
        """Abort those of the ``wanted`` calls of which nothing was sent yet; return their keys.

        Their consumers have received nothing. ``wanted`` is called with keys of calls in progress.
        """
        self._done = self.take()
        waiting = self._names.remove(lambda handle: wanted(handle.call.key))
        busy = [
            handle
            for handle in self._busy.values()
            if wanted(handle.call.key) and not handle.has_sent
        ]
        keys = [handle.call.key for handle in waiting + busy]
        # Calls that would have passed addresses to libcurl may be among them.
        self._not_in_libcurl.clear()
        for handle in busy:
            self._release(handle)
        for handle in waiting:
            self._put_back(handle)
        return keys

    def close(self) -> None:
        """Abort all calls and close every connection. The sender cannot be used afterwards."""
        self.abort_all()
        self._done.clear()
        self._names.close()
        self._multi.close()
        self._dummy_handle.close()
        for handle in self._idle:
            handle.curl.close()
        self._idle.clear()
        self._epoll.close()

    def _new_handle(self) -> Handle:
        return Handle(self._limits, self._on_connection)

    def _on_connection(self) -> None:
        self._connected = True

    def _call_the_waiting(self) -> None:
        """Make libcurl check again the calls that wait for a connection in progress.

        By itself it does so only if they can share that connection, or when a call has ended: calls
        to a consumer without HTTP/2 would wait for the first one's response.
        """
        if self._connected:
            self._connected = False
            self._multi.add_handle(self._dummy_handle)
            self._multi.remove_handle(self._dummy_handle)

    def _add(self, handle: Handle) -> None:
        self._busy[handle.curl] = handle
        self._multi.add_handle(handle.curl)

    def _add_resolved(self, handle: Handle, place: Place, cached: CachedAddresses) -> None:
        if not cached.in_libcurl:
            handle.set_addresses(place, cached.addresses)
            self._not_in_libcurl.append(cached)
        self._add(handle)

    def _resume(self) -> None:
        """Continue calls that waited for a name."""
        for lookup in self._names.collect():
            handle = lookup.waiter
            if isinstance(lookup.result, CachedAddresses):
                handle.spend(lookup.waited_ms)
                self._add_resolved(handle, lookup.place, lookup.result)
                continue
            text, is_local = lookup.result
            sentence = errors.RESOLVER if is_local else errors.SENTENCES[Outcome.DNS_ERROR]
            outcome = Outcome.INTERRUPTED if is_local else Outcome.DNS_ERROR
            self._done.append(
                _unsent(handle.call, outcome, f"{sentence}: {text}.", lookup.waited_ms)
            )
            self._put_back(handle)

    def _finish(self, curl: Any, code: int, detail: str) -> Response:
        handle = self._busy[curl]
        answer = handle.answer(code, detail)
        if len(handle.call.body) > LARGE_BODY:
            self._early.learn(handle, answer)
        self._release(handle)
        return answer

    def _release(self, handle: Handle) -> None:
        del self._busy[handle.curl]
        self._multi.remove_handle(handle.curl)
        self._put_back(handle)

    def _put_back(self, handle: Handle) -> None:
        if len(self._idle) < self._max_idle_handles:
            handle.unload()
            self._idle.append(handle)
        else:
            handle.curl.close()

    def _on_socket(self, what: int, fd: int, multi: Any, data: Any) -> None:
        if what == pycurl.POLL_REMOVE or what == pycurl.POLL_NONE:
            self._unwatch(fd)
            return
        events = _EVENTS[what]
        watched_events = self._watched.get(fd)
        if watched_events is None:
            self._epoll.register(fd, events)
        elif watched_events != events:
            self._epoll.modify(fd, events)
        self._watched[fd] = events

    def _unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            with suppress(OSError):  # closed before libcurl reported it
                self._epoll.unregister(fd)

    def _on_timer_change(self, timeout_ms: int) -> None:
        if timeout_ms > 0:
            self._due = time.monotonic() + timeout_ms / 1000
        else:
            self._due = 0.0 if timeout_ms == 0 else None


class EarlyAnswers:
    """URLs whose last large request broke, or was answered before its body was sent.

    Such a receiver closes with a part of the body unread, so its kernel sends a reset. That
    discards an answer that has not left yet: over TLS often, since Nagle's algorithm holds it back
    until the session tickets are acknowledged. Nothing is left to read here. The next large body
    therefore waits until the receiver asks for it or answers (``Expect: 100-continue``, RFC 9110
    10.1.1), which costs a round trip, or a second if the receiver does not know that header.
    """

    def __init__(self) -> None:
        self._urls = set[str]()

    def awaits(self, call: Call) -> bool:
        """Whether a call's body waits for an early answer."""
        return len(call.body) > LARGE_BODY and call.url in self._urls

    def learn(self, handle: Handle, answer: Response) -> None:
        """Note how a call with a large body has ended.

        If waiting did not help, the next call does without: the header itself may be the cause.
        """
        if answer.outcome.is_success or answer.outcome is Outcome.THROTTLED:
            is_early = not handle.has_sent_all
        else:
            is_early = answer.outcome is Outcome.CONNECTION_RESET and not handle.expects
        if not is_early:
            self._urls.discard(handle.call.url)
            return
        if len(self._urls) >= _MAX_URLS:
            self._urls.clear()
        self._urls.add(handle.call.url)


def _machines_cas() -> str:
    """Return this host's CA file; the pycurl wheel has the path of its build host."""
    return ssl.get_default_verify_paths().cafile or certifi.where()


def _unsent(call: Call, outcome: Outcome, sentence: str, total_ms: int) -> Response:
    """Return the response of a call that never reached libcurl."""
    return Response(
        key=call.key,
        outcome=outcome,
        status=None,
        headers="",
        excerpt=b"",
        error=sentence,
        retry_after=None,
        connect_ms=None,
        first_byte_ms=None,
        total_ms=total_ms,
        remote_address="",
    )


def _action(events: int) -> int:
    """Translate epoll events for libcurl: an error counts as both readable and writable."""
    reads = pycurl.CSELECT_IN if events & ~select.EPOLLOUT else 0
    writes = pycurl.CSELECT_OUT if events & ~select.EPOLLIN else 0
    return reads | writes
