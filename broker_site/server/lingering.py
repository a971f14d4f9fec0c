"""Close the connections of refused requests so that their clients can read the response.

granian closes a connection whose request still has an unread body. What the client sends afterwards
makes the kernel reset the connection, and the client loses the response that it has not read yet.
A duplicate of the socket's descriptor keeps the socket open after granian has closed it: one thread
reads and discards what still comes, within limits of time and size.

WSGI does not say on which socket a request came. So all connections of the client's address are
duplicated for a moment, and only those that granian has shut down for sending are read. Closing the
duplicate of any other connection changes nothing.
"""

import os
import select
import socket
import stat
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SHUTDOWN_S = 1.0
"""Seconds within which granian closes the connection; it takes milliseconds."""
TOTAL_S = 10.0
"""Seconds after which a connection is closed, even if its client still sends."""
IDLE_S = 2.0
"""Seconds of silence after which it is closed: a client that sends nothing has read the response,
or waits for it in vain."""
MAX_BYTES = 128 * 1024 * 1024
"""Bytes that are discarded for each connection: twice the largest body that may be configured."""
MAX_CONNECTIONS = 64
"""Closed connections that are read at the same time; beyond that, the oldest one is dropped."""
MAX_DUPLICATES = 2048
"""Duplicates at the same time: each is a file of this process."""
SCAN_SHARE, MAX_SCAN_S = 0.1, 0.1
"""Share of one core that may be spent on finding connections, and the most at once in CPU seconds.
Beyond that, refused connections are reset: refusals must stay cheap in a flood of them."""
POLL_S = 0.01
"""Seconds until the first check whether granian has closed a connection; then twice as many."""
ROUND_BYTES = 1024 * 1024
"""Bytes that one connection may send before the next one has its turn."""

# Linux's numbers of TCP states (include/net/tcp_states.h).
_ESTABLISHED = 1
_SHUT_DOWN = {4, 5}
"""The states after this side was shut down for sending, while the other side still sends."""


@dataclass(slots=True)
class _Connection:
    duplicate: socket.socket
    ends_at: float
    silent_at: float
    """When the connection has been silent for too long; when granian should have closed it."""
    is_closing: bool = False
    """Whether granian has closed it, so that it is read."""
    remaining: int = 0
    """Bytes that are still discarded."""
    look_at: float = 0.0
    """When to check next whether granian has closed it."""

    def state(self) -> int:
        """The number of its TCP state."""
        return self.duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


class Lingering:
    """The connections of a process that are being closed, and the thread that reads them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._connections: dict[int, _Connection] = {}
        """By inode, oldest first."""
        self._thread: threading.Thread | None = None
        self._budget_s = MAX_SCAN_S
        self._scanned_at = time.monotonic()
        self._buffer = bytearray(ROUND_BYTES)

    def keep(self, meta: Mapping[str, Any]) -> None:
        """Keep the request's connection open for a moment after the server has closed it.

        Call it before the response is given to the server. Without a body, on a server that closes
        connections otherwise, or where the kernel is not Linux, it does nothing.
        """
        if sys.platform != "linux" or not _is_cut_short(meta):
            return
        with self._changed:
            now = time.monotonic()
            earned = (now - self._scanned_at) * SCAN_SHARE
            self._budget_s = min(MAX_SCAN_S, self._budget_s + earned)
            self._scanned_at = now
            if self._budget_s <= 0:
                return
            begun = time.thread_time()
            self._keep_all(meta["REMOTE_ADDR"], int(meta["SERVER_PORT"]))
            self._budget_s -= time.thread_time() - begun
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lingering", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _keep_all(self, address: str, port: int) -> None:
        now = time.monotonic()
        for name in os.listdir("/proc/self/fd"):
            if len(self._connections) >= MAX_DUPLICATES:
                return
            try:
                status = os.fstat(int(name))
                if not stat.S_ISSOCK(status.st_mode):
                    continue
                if (earlier := self._connections.get(status.st_ino)) is not None:
                    if not earlier.is_closing:
                        earlier.silent_at, earlier.look_at = now + SHUTDOWN_S, now
                    continue
                duplicate = _duplicate(int(name))
            except OSError:  # closed meanwhile
                continue
            # The descriptor may have been reused since the first look.
            inode = os.fstat(duplicate.fileno()).st_ino
            if inode in self._connections or not _is_between(duplicate, address, port):
                duplicate.close()
                continue
            connection = _Connection(
                duplicate, now + TOTAL_S, now + SHUTDOWN_S, remaining=MAX_BYTES
            )
            self._connections[inode] = connection

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._connections:
                    self._changed.wait()
                connections = dict(self._connections)
            poll = select.poll()
            for connection in connections.values():
                if connection.is_closing:
                    poll.register(connection.duplicate, select.POLLIN)
            poll.poll(POLL_S * 1000)
            now = time.monotonic()
            ended = [
                key for key, connection in connections.items() if self._is_over(connection, now)
            ]
            closing = [key for key, connection in connections.items() if connection.is_closing]
            with self._changed:
                for key in {*ended, *closing[:-MAX_CONNECTIONS]}:
                    self._connections.pop(key).duplicate.close()

    def _is_over(self, connection: _Connection, now: float) -> bool:
        """Read what has come; return whether nothing more is to be read."""
        try:
            if not connection.is_closing:
                if now < connection.look_at:
                    return False
                # Less and less often: most of them stay open, and there may be a thousand.
                connection.look_at = now + max(POLL_S, now - connection.silent_at + SHUTDOWN_S)
                state = connection.state()
                if state not in _SHUT_DOWN:
                    return state != _ESTABLISHED or now > connection.silent_at
                connection.is_closing, connection.silent_at = True, now + IDLE_S
            size = min(ROUND_BYTES, connection.remaining)
            # TRUNC discards: nothing is copied into the buffer.
            count = connection.duplicate.recv_into(
                self._buffer, size, socket.MSG_TRUNC | socket.MSG_DONTWAIT
            )
        except BlockingIOError:
            return now > min(connection.silent_at, connection.ends_at)
        except OSError:
            return True
        connection.remaining -= count
        connection.silent_at = now + IDLE_S
        return not count or connection.remaining <= 0 or now > connection.ends_at


def _is_cut_short(meta: Mapping[str, Any]) -> bool:
    """Whether the server closes the connection when it leaves this request's body unread."""
    has_body = meta.get("CONTENT_LENGTH") not in {None, "", "0"} or "HTTP_TRANSFER_ENCODING" in meta
    is_first_http = str(meta["SERVER_PROTOCOL"]).startswith("HTTP/1")
    return has_body and is_first_http and meta.get("SERVER_SOFTWARE") == "Granian"


def _duplicate(descriptor: int) -> socket.socket:
    """Raises OSError if it is no socket (any more)."""
    own = os.dup(descriptor)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise


def _is_between(connection: socket.socket, address: str, port: int) -> bool:
    """Whether a socket is a connection of this address to this port."""
    if connection.family not in {socket.AF_INET, socket.AF_INET6}:
        return False
    try:
        peer, own = connection.getpeername(), connection.getsockname()
    except OSError:  # not connected
        return False
    return bool(peer[0] == address and own[1] == port)


lingering = Lingering()
