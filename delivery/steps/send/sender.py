"""Many calls at a time on one thread: libcurl's multi interface driven by a shared selector."""

import selectors
import ssl
import time
from typing import Any

import certifi
import pycurl

from channels_app.rules.addresses import Networks
from delivery.rules.outcome import Outcome
from delivery.steps.send.call import Answer, Call, CallRefused
from delivery.steps.send.handle import Handle, Limits

_EVENTS = {
    pycurl.POLL_IN: selectors.EVENT_READ,
    pycurl.POLL_OUT: selectors.EVENT_WRITE,
    pycurl.POLL_INOUT: selectors.EVENT_READ | selectors.EVENT_WRITE,
}
# What a selector reports, as libcurl wants to be told.
_ACTIONS = (
    0,
    pycurl.CSELECT_IN,
    pycurl.CSELECT_OUT,
    pycurl.CSELECT_IN | pycurl.CSELECT_OUT,
)


class Sender:
    """Carries calls and hands out their answers. Not thread-safe: it belongs to one loop.

    It registers libcurl's sockets with ``selector`` under ``data=sender.ready``, so a loop that
    shares the selector calls ``key.data(key.fd, mask)``. Nothing moves unless the loop also calls
    `on_timer` once `next_timeout` has passed. Connections are kept open and reused by address;
    ``max_connections`` says how many, busy ones included, before the idlest is closed.

    Only addresses that `may_call` lets through with the ``allowed`` networks are ever connected
    to. ``ca_file`` (PEM) replaces the machine's certificate authorities. An answer is read up to
    ``max_answer_bytes``, and its first ``excerpt_bytes`` are kept.
    """

    def __init__(
        self,
        *,
        selector: selectors.BaseSelector,
        allowed: Networks,
        excerpt_bytes: int,
        max_answer_bytes: int,
        ca_file: str | None = None,
        max_connections: int = 1024,
    ) -> None:
        self._limits = Limits(allowed, excerpt_bytes, max_answer_bytes, ca_file or _machines_cas())
        self._selector = selector
        self._watched: dict[int, int] = {}
        self._due: float | None = None
        self._idle: list[Handle] = []
        self._busy: dict[Any, Handle] = {}
        self._refused: list[Answer] = []
        self._max_idle_handles = max_connections
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer_change)
        self._multi.setopt(pycurl.M_PIPELINING, pycurl.PIPE_MULTIPLEX)
        self._multi.setopt(pycurl.M_MAXCONNECTS, max_connections)

    @property
    def in_flight(self) -> int:
        """Calls started whose answers were not yet taken."""
        return len(self._busy) + len(self._refused)

    def start(self, call: Call) -> None:
        """Begin one call; it goes out at the next `on_timer`.

        Never raises for what the call holds: one that cannot be sent gets its answer from `take`.
        """
        handle = self._idle.pop() if self._idle else Handle(self._limits)
        try:
            handle.load(call)
        except CallRefused as refusal:
            self._refused.append(_refusal(call, str(refusal)))
            self._idle.append(handle)
            return
        self._busy[handle.curl] = handle
        self._multi.add_handle(handle.curl)

    def ready(self, fd: int, mask: int) -> None:
        """Tell libcurl what the selector saw at one of its sockets (selectors' EVENT_ mask)."""
        # An event of the same round may have made libcurl let go of this socket.
        if fd in self._watched:
            self._multi.socket_action(fd, _ACTIONS[mask])

    def next_timeout(self) -> float | None:
        """Seconds until `on_timer` is to be called, at once if 0; None while nothing is due."""
        if self._refused:
            return 0.0
        if self._due is None:
            return None
        return max(self._due - time.monotonic(), 0.0) if self._due else 0.0

    def on_timer(self) -> None:
        """Start what was added and end what has timed out, if the time for it has come."""
        if self._due is not None and self._due <= time.monotonic():
            self._due = None
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)

    def take(self) -> list[Answer]:
        """The answers to the calls that have ended since the last time."""
        answers, self._refused = self._refused, []
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
        self._refused = self.take()
        keys = []
        for handle in list(self._busy.values()):
            keys.append(handle.call.key)
            self._release(handle)
        return keys

    def close(self) -> None:
        """Give up everything and close every connection. The sender is of no use afterwards."""
        self.abort_all()
        self._refused = []
        self._multi.close()
        for handle in self._idle:
            handle.curl.close()
        self._idle.clear()
        for fd in list(self._watched):
            self._unwatch(fd)

    def _finish(self, curl: Any, code: int, detail: str) -> Answer:
        handle = self._busy[curl]
        answer = handle.answer(code, detail)
        self._release(handle)
        return answer

    def _release(self, handle: Handle) -> None:
        del self._busy[handle.curl]
        self._multi.remove_handle(handle.curl)
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
            self._selector.register(fd, events, self.ready)
        elif known != events:
            self._selector.modify(fd, events, self.ready)
        self._watched[fd] = events

    def _unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            self._selector.unregister(fd)

    def _on_timer_change(self, timeout_ms: int) -> None:
        if timeout_ms > 0:
            self._due = time.monotonic() + timeout_ms / 1000
        else:
            self._due = 0.0 if timeout_ms == 0 else None


def _machines_cas() -> str:
    """The authorities that this machine trusts; the pycurl wheel looks where its builder did."""
    return ssl.get_default_verify_paths().cafile or certifi.where()


def _refusal(call: Call, sentence: str) -> Answer:
    return Answer(
        key=call.key,
        outcome=Outcome.PROTOCOL_ERROR,
        status=None,
        headers="",
        excerpt=b"",
        error=sentence,
        retry_after=None,
        connect_ms=None,
        first_byte_ms=None,
        total_ms=0,
        remote_address="",
    )
