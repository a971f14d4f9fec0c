"""The load generator: a process that hands messages in over many connections and notes answers.

In a closed loop each connection sends its next request when the last one is answered. In an open
loop requests go out at a fixed rate, whatever the answers do. A request whose connection breaks is
noted as unanswered and not sent again, since nobody can tell whether it was stored; the numbers
that come after it wait until the broker is there again.
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
"""Stands where a status would be."""
MAX_CONNECTIONS = 512
POLL_S = 0.05
RETRY_S = 0.05
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be handed in."""

    route: Route
    first: int
    """Number of the first message."""
    count: int
    """Messages."""
    connections: int = 32
    rate: float | None = None
    """Requests a second in an open loop; None is a closed one."""
    together: int = 1
    """Messages in each request."""
    size: int = SIZE
    """Bytes of a message."""


class Load:
    """The running process, and its books: (first number, count, sent ns, answered ns, status)."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.log = plan, Log.create()
        arguments = (self.log.path, plan, os.getpid())
        self._process = SPAWN.Process(target=generate, args=arguments, daemon=True)
        self._process.start()

    @property
    def is_running(self) -> bool:
        """Whether something is still to be sent or answered."""
        return self._process.is_alive()

    def close(self) -> None:
        """End it, finished or not."""
        self._process.kill()
        self._process.join()
        self.log.remove()


def generate(path: Path, plan: Plan, parent: int) -> None:
    """The process itself: run until everything was handed in, or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Generator(plan, Log(path)).run(parent)


@dataclass(slots=True)
class _Open:
    """A connection."""

    socket: socket.socket
    first: int = 0
    count: int = 0
    """Messages of the request that waits for its answer; 0: none does."""
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
        """Until all is sent and answered, or the parent is gone."""
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
        """Send the next request; False when there is no connection for it now."""
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
        """Its request, if it has one, stays unanswered."""
        if connection.count:
            self._note(connection, UNANSWERED)
        elif connection in self._idle:
            self._idle.remove(connection)
        del self._open[connection.socket.fileno()]
        connection.socket.close()

    def _note(self, of: _Open, status: int) -> None:
        self._log.append((of.first, of.count, of.sent_at, time.monotonic_ns(), status))


def whole(data: bytes) -> int | None:
    """The status of a complete HTTP answer; None while some of it is missing."""
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
