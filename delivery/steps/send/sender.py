"""Many calls at a time on one thread: libcurl's multi interface on an epoll of its own."""

import select
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import certifi
import pycurl

from channels_app.rules.addresses import Networks
from delivery.rules.outcome import Outcome
from delivery.steps.send import dns
from delivery.steps.send.dns import Known, Names, Place
from delivery.steps.send.handle import Call, CallRefused, Handle, Limits, Response

_EVENTS = {
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}


class Sender:
    """Carries calls and hands out their answers. Not thread-safe: it belongs to one loop.

    Nothing moves unless the loop calls `ready` when `fileno` is readable, and `on_timer` once
    `next_timeout` has passed. Connections are kept open and reused by address;
    ``max_connections`` says how many, busy ones included, before the idlest is closed.

    Only addresses that `may_call` lets through with the ``allowed`` networks are ever connected
    to. ``ca_file`` (PEM) replaces the machine's certificate authorities. An answer is read up to
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
        # One of its own inside the loop's: the standard library's selectors take longer to note
        # a socket and to report it than the kernel does, and libcurl notes one for every call.
        self._epoll = select.epoll()
        self._watched: dict[int, int] = {}
        self._due: float | None = None
        self._idle: list[Handle] = []
        self._busy: dict[Any, Handle] = {}
        self._done: list[Response] = []
        self._names: Names[Handle] = Names()
        self._epoll.register(self._names.fd, select.EPOLLIN)
        self._untold: list[Known] = []
        self._max_idle_handles = max_connections
        self._connected = False
        self._no_waiters = pycurl.Curl()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer_change)
        self._multi.setopt(pycurl.M_PIPELINING, pycurl.PIPE_MULTIPLEX)
        self._multi.setopt(pycurl.M_MAXCONNECTS, max_connections)

    @property
    def in_flight(self) -> int:
        """Calls started whose answers were not yet taken."""
        return len(self._busy) + len(self._done) + len(self._names)

    def start(self, call: Call) -> None:
        """Begin one call; it goes out at the next `on_timer`.

        Never raises for what the call holds: one that cannot be sent gets its answer from `take`.
        """
        handle = self._idle.pop() if self._idle else self._new_handle()
        try:
            handle.load(call)
        except CallRefused as refusal:
            self._done.append(_unsent(call, Outcome.PROTOCOL_ERROR, str(refusal), 0))
            self._idle.append(handle)
            return
        place = dns.place_of(call.url)
        if place is None:
            self._go(handle)
        elif (known := self._names.known(place)) is not None:
            self._lead(handle, place, known)
        else:
            limit_ms = min(call.timeout_ms, call.connect_timeout_ms)
            self._names.wait(handle, place, limit_ms / 1000)

    def fileno(self) -> int:
        """What a selector watches: readable while `ready` has something to do."""
        return self._epoll.fileno()

    def ready(self, seconds: float | None = 0.0) -> None:
        """Move on whatever the network has news for; wait for some, up to ``seconds`` if any."""
        for fd, events in self._epoll.poll(seconds):
            # An event of the same round may have made libcurl let go of this socket.
            if fd in self._watched:
                self._multi.socket_action(fd, _action(events))
            elif fd == self._names.fd:
                self._resume()
        self._call_the_waiting()

    def next_timeout(self) -> float | None:
        """Seconds until `on_timer` is to be called, at once if 0; None while nothing is due."""
        if self._done or self._due == 0.0:
            return 0.0
        due = self._names.next_deadline()
        if due is None or (self._due is not None and self._due < due):
            due = self._due
        return None if due is None else max(due - time.monotonic(), 0.0)

    def on_timer(self) -> None:
        """Start what was added and end what has timed out, if the time for it has come."""
        now = time.monotonic()
        impatient = self._names.next_deadline()
        if impatient is not None and impatient <= now:
            self._resume()
        if self._due is not None and self._due <= now:
            self._due = None
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
            # What was added has begun, so libcurl has read where the names lead.
            for known in self._untold:
                known.told = True
            self._untold.clear()
            self._call_the_waiting()

    def take(self) -> list[Response]:
        """The answers to the calls that have ended since the last time."""
        answers, self._done = self._done, []
        queued = 1
        while queued:
            queued, whole, failed = self._multi.info_read()
            answers += [self._finish(curl, 0, "") for curl in whole]
            answers += [self._finish(curl, code, detail) for curl, code, detail in failed]
        return answers

    def abort_all(self) -> list[int]:
        """Give up every call that has not ended; their keys. What has ended is still to be taken.

        A consumer may have received an aborted call.
        """
        self._done = self.take()
        waiting, going = self._names.dismiss(), list(self._busy.values())
        keys = [handle.call.key for handle in waiting + going]
        self._untold.clear()
        for handle in going:
            self._release(handle)
        for handle in waiting:
            self._put_back(handle)
        return keys

    def recall(self, wanted: Callable[[int], bool]) -> list[int]:
        """Give up those of the ``wanted`` calls of which nothing was sent yet; their keys.

        Their consumers have received nothing. Asked by key; what has ended is not.
        """
        self._done = self.take()
        waiting = self._names.dismiss(lambda handle: wanted(handle.call.key))
        going = [it for it in self._busy.values() if wanted(it.call.key) and not it.has_sent]
        keys = [handle.call.key for handle in waiting + going]
        self._untold.clear()  # whoever was to tell libcurl of a name may be among them
        for handle in going:
            self._release(handle)
        for handle in waiting:
            self._put_back(handle)
        return keys

    def close(self) -> None:
        """Give up everything and close every connection. The sender is of no use afterwards."""
        self.abort_all()
        self._done.clear()
        self._names.close()
        self._multi.close()
        self._no_waiters.close()
        for handle in self._idle:
            handle.curl.close()
        self._idle.clear()
        self._epoll.close()

    def _new_handle(self) -> Handle:
        return Handle(self._limits, self._on_connection)

    def _on_connection(self) -> None:
        self._connected = True

    def _call_the_waiting(self) -> None:
        """Make libcurl look again at the calls that wait for a connection under way.

        By itself it does so only when they can share it, or when some call has ended: those to a
        consumer without HTTP/2 would wait for the first one's answer.
        """
        if self._connected:
            self._connected = False
            self._multi.add_handle(self._no_waiters)
            self._multi.remove_handle(self._no_waiters)

    def _go(self, handle: Handle) -> None:
        self._busy[handle.curl] = handle
        self._multi.add_handle(handle.curl)

    def _lead(self, handle: Handle, place: Place, known: Known) -> None:
        if not known.told:
            handle.lead(place, known.addresses)
            self._untold.append(known)
        self._go(handle)

    def _resume(self) -> None:
        """Go on with the calls that waited for a name."""
        for served in self._names.collect():
            handle = served.waiter
            if isinstance(served.finding, Known):
                handle.spend(served.waited_ms)
                self._lead(handle, served.place, served.finding)
                continue
            sentence = f"The host name could not be resolved: {served.finding}."
            self._done.append(_unsent(handle.call, Outcome.DNS_ERROR, sentence, served.waited_ms))
            self._put_back(handle)

    def _finish(self, curl: Any, code: int, detail: str) -> Response:
        handle = self._busy[curl]
        answer = handle.answer(code, detail)
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
        known = self._watched.get(fd)
        if known is None:
            self._epoll.register(fd, events)
        elif known != events:
            self._epoll.modify(fd, events)
        self._watched[fd] = events

    def _unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            with suppress(OSError):  # closed before we were told
                self._epoll.unregister(fd)

    def _on_timer_change(self, timeout_ms: int) -> None:
        if timeout_ms > 0:
            self._due = time.monotonic() + timeout_ms / 1000
        else:
            self._due = 0.0 if timeout_ms == 0 else None


def _action(events: int) -> int:
    """What epoll reports, as libcurl wants to be told: an error is news for whoever waits."""
    reads = pycurl.CSELECT_IN if events & ~select.EPOLLOUT else 0
    writes = pycurl.CSELECT_OUT if events & ~select.EPOLLIN else 0
    return reads | writes


def _machines_cas() -> str:
    """The authorities that this machine trusts; the pycurl wheel looks where its builder did."""
    return ssl.get_default_verify_paths().cafile or certifi.where()


def _unsent(call: Call, outcome: Outcome, sentence: str, total_ms: int) -> Response:
    """The answer to a call that libcurl never got."""
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
