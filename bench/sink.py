"""Run the endpoint of deliveries, a process that responds at once and logs requests.

    http://127.0.0.1:PORT/take/3    200 at once       the number at the end is the consumer's
    http://127.0.0.1:PORT/fail/4    500 at once
    http://127.0.0.1:PORT/hang/5    never responds
    http://127.0.0.1:PORT/later/6   200 after a tenth of a second
    http://127.0.0.1:PORT/slow/7    200 after a second

It implements the HTTP/1.1 that webhooks need: POST, Content-Length, keep-alive, pipelining.
"""

import heapq
import itertools
import multiprocessing
import os
import select
import signal
import socket
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, Self

from bench.adapters import BenchError
from bench.bodies import number_in
from bench.records import Log

Manner = Literal["take", "fail", "hang", "later", "slow"]
ANSWERS: dict[Manner, bytes] = {
    "take": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "fail": b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nno",
    "hang": b"",
    "later": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nby",
    "slow": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nso",
}
WAITS = {ANSWERS["later"]: 0.1, ANSWERS["slow"]: 1.0}
"""Delay of these responses in seconds."""
LENGTH = len(ANSWERS["later"])
"""Bytes of each response."""
UNKNOWN = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
NO_LENGTH = b"HTTP/1.1 411 Length Required\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
START_S = 20.0
POLL_S = 0.5
"""Seconds between checks that the harness is alive."""


class Sink:
    """The running process and its log: (consumer, message number, received at ns)."""

    def __init__(self) -> None:
        self.log = Log.create()
        spawn = multiprocessing.get_context("spawn")
        here, there = spawn.Pipe(duplex=False)
        arguments = (self.log.path, there, os.getpid())
        self._process = spawn.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        there.close()
        if not here.poll(START_S):
            self.close()
            raise BenchError("The sink did not start.")
        self.port: int = here.recv()
        here.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def url(self, consumer: int, manner: Manner = "take") -> str:
        """URL at which the consumer with this number receives."""
        return f"http://127.0.0.1:{self.port}/{manner}/{consumer}"

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid or 0

    def close(self) -> None:
        """Stop the process."""
        self._process.kill()
        self._process.join()
        self.log.remove()


def serve(path: Path, to_parent: Connection, parent: int) -> None:
    """Run in the process until the parent has died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        to_parent.send(listener.getsockname()[1])
        to_parent.close()
        _Server(listener, Log(path)).run(parent)


class _Server:
    def __init__(self, listener: socket.socket, log: Log) -> None:
        self._listener, self._log = listener, log
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._unread: dict[int, bytes] = {}
        """By connection: the beginning of an incomplete request."""
        self._routes: dict[bytes, tuple[bytes, int] | None] = {}
        self._owed: list[tuple[float, int, socket.socket, bytes]] = []
        """Delayed responses: a heap by time, then by sequence number."""
        self._turns = itertools.count()
        listener.setblocking(False)
        self._epoll.register(listener, select.EPOLLIN)

    def run(self, parent: int) -> None:
        """Serve until the parent has died."""
        while os.getppid() == parent:
            wait = POLL_S
            if self._owed:
                wait = min(wait, max(0.0, self._owed[0][0] - time.monotonic()))
            for descriptor, _ in self._epoll.poll(wait):
                if descriptor == self._listener.fileno():
                    self._accept()
                else:
                    self._read(descriptor)
            self._give()

    def _give(self) -> None:
        """Send the responses that are due."""
        now = time.monotonic()
        while self._owed and self._owed[0][0] <= now:
            _, _, client, answer = heapq.heappop(self._owed)
            with suppress(OSError):  # the client disconnected
                client.sendall(answer)

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                client, _ = self._listener.accept()
                client.setblocking(False)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets[client.fileno()] = client
                self._epoll.register(client, select.EPOLLIN)

    def _read(self, descriptor: int) -> None:
        client = self._sockets[descriptor]
        try:
            data = client.recv(262_144)
            at = time.monotonic_ns()
            if data:
                unread, answer = self._take(self._unread.pop(descriptor, b"") + data, at)
                if wait := WAITS.get(answer[:LENGTH], 0.0):
                    owed = time.monotonic() + wait, next(self._turns), client, answer
                    heapq.heappush(self._owed, owed)
                elif answer:
                    client.sendall(answer)
                if unread:
                    self._unread[descriptor] = unread
                return
        except OSError:  # the client disconnected, or does not read its responses
            pass
        self._unread.pop(descriptor, None)
        del self._sockets[descriptor]
        client.close()

    def _take(self, data: bytes, at: int) -> tuple[bytes, bytes]:
        """Log every complete request; returns the remaining bytes, and the responses."""
        answers = b""
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end]
            length = _length(head)
            if length is None:
                return b"", answers + NO_LENGTH
            whole = end + 4 + length
            if len(data) < whole:
                break
            answers += self._answer(head, data[end + 4 : whole], at)
            data = data[whole:]
        return data, answers

    def _answer(self, head: bytes, body: bytes, at: int) -> bytes:
        target = head.split(b" ", 2)[1]
        if target not in self._routes:
            self._routes[target] = _route(target)
        route = self._routes[target]
        number = number_in(body)
        if route is None or number is None:
            return UNKNOWN
        answer, consumer = route
        self._log.append((consumer, number, at, 0, 0))
        return answer


def _length(head: bytes) -> int | None:
    lower = head.lower()
    at = lower.find(b"\r\ncontent-length:")
    if at < 0:
        return None
    return int(lower[at + 17 :].split(b"\r\n", 1)[0])


def _route(target: bytes) -> tuple[bytes, int] | None:
    """Return response and consumer of ``/take/3``."""
    _, _, path = target.decode("latin-1").partition("/")
    manner, _, consumer = path.partition("/")
    for known, answer in ANSWERS.items():
        if manner == known and consumer.isdecimal():
            return answer, int(consumer)
    return None
