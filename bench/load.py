"""Run the load generator, a process that publishes over many connections and logs responses.

In a closed loop each connection sends its next request after the last response. In an open loop
requests are sent at a fixed rate, independent of responses. A request whose connection breaks is
logged as unanswered and not repeated, since it is unknown whether it was stored. Later messages
wait until the broker is back.
"""

import multiprocessing
import os
import select
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from bench.adapters import Route
from bench.bodies import SIZE, body
from bench.records import Log

UNANSWERED = 0
"""Stands in place of a status code."""
MAX_CONNECTIONS = 512
POLL_S = 0.05
RETRY_S = 0.05
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to publish."""

    route: Route
    first: int
    """Number of the first message."""
    count: int
    """Number of messages."""
    connections: int = 32
    rate: float | None = None
    """Requests per second in an open loop; None for a closed one."""
    together: int = 1
    """Messages per request."""
    size: int = SIZE
    """Bytes of a message."""


class Load:
    """The running process and its log: (first number, count, sent ns, answered ns, status)."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.log = plan, Log.create()
        arguments = (self.log.path, plan, os.getpid())
        self._process = SPAWN.Process(target=generate, args=arguments, daemon=True)
        self._process.start()

    @property
    def is_running(self) -> bool:
        """Whether requests are still to be sent or answered."""
        return self._process.is_alive()

    def close(self) -> None:
        """Stop the process, finished or not."""
        self._process.kill()
        self._process.join()
        self.log.remove()


def generate(path: Path, plan: Plan, parent: int) -> None:
    """Run in the process until everything is published, or the parent has died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Generator(plan, Log(path)).run(parent)


@dataclass(slots=True)
class _Open:
    """A connection."""

    socket: socket.socket
    first: int = 0
    count: int = 0
    """Messages of the request in flight; 0: none."""
    sent_at: int = 0
    unread: bytes = b""


class _Generator:
    def __init__(self, plan: Plan, log: Log) -> None:
        self._plan, self._log = plan, log
        self._next, self._end = plan.first, plan.first + plan.count
        self._open: dict[int, _Open] = {}
        self._idle: list[_Open] = []
        self._epoll = select.epoll()
        self._try_again_at = 0.0
        route = plan.route
        lines = [f"POST {route.path} HTTP/1.1", f"Host: {route.host}:{route.port}"]
        lines += [f"{name}: {value}" for name, value in route.headers.items()]
        self._head = "\r\n".join([*lines, "Content-Length: "]).encode()

    def run(self, parent: int) -> None:
        """Run until all is sent and answered, or the parent has died."""
        start, sent = time.monotonic(), 0
        while os.getppid() == parent:
            wait = POLL_S
            if self._plan.rate is None:
                while self._next < self._end and self._send():
                    pass
            else:
                due = start + sent / self._plan.rate
                while self._next < self._end and (wait := due - time.monotonic()) <= 0:
                    if not self._send():
                        wait = RETRY_S
                        break
                    sent += 1
                    due = start + sent / self._plan.rate
            if self._next >= self._end and len(self._idle) == len(self._open):
                return
            for descriptor, _ in self._epoll.poll(max(0.0, min(wait, POLL_S))):
                self._read(self._open[descriptor])

    def _send(self) -> bool:
        """Send the next request; False when no connection is available."""
        connection = self._idle.pop() if self._idle else self._connect()
        if connection is None:
            return False
        plan = self._plan
        numbers = range(self._next, min(self._next + plan.together, self._end))
        content = plan.route.pack([body(number, plan.size) for number in numbers])
        connection.first, connection.count = numbers.start, len(numbers)
        self._next = numbers.stop
        connection.sent_at = time.monotonic_ns()
        try:
            connection.socket.sendall(b"%s%d\r\n\r\n%s" % (self._head, len(content), content))
        except OSError:
            self._lose(connection)
        return True

    def _connect(self) -> _Open | None:
        most = self._plan.connections if self._plan.rate is None else MAX_CONNECTIONS
        if len(self._open) >= most or time.monotonic() < self._try_again_at:
            return None
        try:
            client = socket.create_connection((self._plan.route.host, self._plan.route.port), 5)
        except OSError:
            self._try_again_at = time.monotonic() + RETRY_S
            return None
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Open(client)
        self._open[client.fileno()] = connection
        self._epoll.register(client, select.EPOLLIN)
        return connection

    def _read(self, connection: _Open) -> None:
        try:
            data = connection.socket.recv(1_048_576)
        except OSError:
            data = b""
        if not data:
            self._lose(connection)
            return
        connection.unread += data
        if (status := whole(connection.unread)) is None:
            return
        self._note(connection, status)
        connection.unread, connection.count = b"", 0
        self._idle.append(connection)

    def _lose(self, connection: _Open) -> None:
        """Close it; its request, if any, stays unanswered."""
        if connection.count:
            self._note(connection, UNANSWERED)
        elif connection in self._idle:
            self._idle.remove(connection)
        del self._open[connection.socket.fileno()]
        connection.socket.close()

    def _note(self, of: _Open, status: int) -> None:
        self._log.append((of.first, of.count, of.sent_at, time.monotonic_ns(), status))


def whole(data: bytes) -> int | None:
    """Return the status of a complete HTTP response; None while it is incomplete."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = data[:end].lower()
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        length = int(head[at + 17 :].split(b"\r\n", 1)[0])
        complete = len(data) >= end + 4 + length
    else:
        complete = b"chunked" not in head or data.endswith(b"0\r\n\r\n")
    return int(data[9:12]) if complete else None
