"""Run the endpoint of deliveries, a process that responds by URL and logs requests.

    http://127.0.0.1:PORT/take/3    200 at once       the number at the end is the consumer's
    http://127.0.0.1:PORT/fail/4    500 at once       BEHAVIORS has the others

It implements the HTTP/1.1 that webhooks need: POST, Content-Length, keep-alive, pipelining.
"""

import heapq
import itertools
import os
import random
import select
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from bench.adapters import BenchError, number_in
from bench.load import SPAWN, Log, content_length

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
FAILED = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nno"
DOWN = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
NO_LENGTH = b"HTTP/1.1 411 Length Required\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
GARBAGE = b"\x00\xff no protocol at all\r\n\r\n"
NOTHING = b""
START_S = 20.0
POLL_S = 0.5
"""Seconds between checks that the harness is alive."""


@dataclass(frozen=True, slots=True)
class Behavior:
    """How a consumer responds. The connection is closed after garbage."""

    response: bytes = OK
    delay_s: float = 0.0
    probability: float = 1.0
    """Share of the requests that get this response; the others get 200."""
    period_s: float = 0.0
    """If set, requests get this response for ``down_s`` at the start of each period."""
    down_s: float = 0.0

    def choose(self, random_: random.Random) -> bytes:
        """Return the response to one request."""
        if self.period_s and time.monotonic() % self.period_s >= self.down_s:
            return OK
        if self.probability < 1.0 and random_.random() >= self.probability:
            return OK
        return self.response


BEHAVIORS = {
    "take": Behavior(),
    "fail": Behavior(FAILED),
    "hang": Behavior(NOTHING),
    "later": Behavior(delay_s=0.1),
    "slow": Behavior(delay_s=1.0),
    # Those of the soak test:
    "sluggish": Behavior(delay_s=0.3),
    "failing": Behavior(FAILED, probability=0.2),
    "hanging": Behavior(NOTHING, probability=0.05),
    "flapping": Behavior(DOWN, period_s=20.0, down_s=5.0),
    "garbage": Behavior(GARBAGE, probability=0.2),
}


class Sink:
    """The running process and its log: (consumer, message, received at ns, whether 200, 0).

    A delayed response is logged when it is sent.
    """

    def __init__(self, seed: int = 0) -> None:
        self.log = Log.create()
        here, there = SPAWN.Pipe(duplex=False)
        arguments = (self.log.path, there, os.getpid(), seed)
        self._process = SPAWN.Process(target=serve, args=arguments, daemon=True)
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

    def url(self, consumer: int, behavior: str = "take") -> str:
        """URL at which the consumer with this number receives; see BEHAVIORS."""
        return f"http://127.0.0.1:{self.port}/{behavior}/{consumer}"

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self.log.remove()


def serve(path: Path, to_parent: Connection, parent: int, seed: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        to_parent.send(listener.getsockname()[1])
        to_parent.close()
        _Server(listener, Log(path), random.Random(seed)).run(parent)


class _Server:
    def __init__(self, listener: socket.socket, log: Log, random_: random.Random) -> None:
        self._listener, self._log, self._random = listener, log, random_
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._unread: dict[int, bytes] = {}
        """By connection: the beginning of an incomplete request."""
        self._routes: dict[bytes, tuple[Behavior, int] | None] = {}
        self._delayed: list[tuple[float, int, socket.socket, tuple[int, int, int]]] = []
        """Delayed responses of 200: a heap by time, then by sequence number."""
        self._sequence = itertools.count()
        listener.setblocking(False)
        self._epoll.register(listener, select.EPOLLIN)

    def run(self, parent: int) -> None:
        while os.getppid() == parent:
            wait = POLL_S
            if self._delayed:
                wait = min(wait, max(0.0, self._delayed[0][0] - time.monotonic()))
            for descriptor, _ in self._epoll.poll(wait):
                if descriptor == self._listener.fileno():
                    self._accept()
                else:
                    self._read(descriptor)
            self._send_delayed()

    def _send_delayed(self) -> None:
        now = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            _, _, client, received = heapq.heappop(self._delayed)
            with suppress(OSError):  # the client disconnected
                client.sendall(OK)
                self._log.append((*received, True, 0))

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
            if data and self._handle(client, self._unread.pop(descriptor, b"") + data, at):
                return
        except OSError:  # the client disconnected, or does not read its responses
            pass
        self._unread.pop(descriptor, None)
        del self._sockets[descriptor]
        client.close()

    def _handle(self, client: socket.socket, data: bytes, at: int) -> bool:
        """Handle every complete request; returns whether the connection stays open."""
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end]
            length = content_length(head)
            if length is None:
                client.sendall(NO_LENGTH)
                return False
            whole = end + 4 + length
            if len(data) < whole:
                break
            if not self._respond(client, head, data[end + 4 : whole], at):
                return False
            data = data[whole:]
        if data:
            self._unread[client.fileno()] = data
        return True

    def _respond(self, client: socket.socket, head: bytes, body: bytes, at: int) -> bool:
        target = head.split(b" ", 2)[1]
        if target not in self._routes:
            self._routes[target] = _route(target)
        route, number = self._routes[target], number_in(body)
        if route is None or number is None:
            client.sendall(NOT_FOUND)
            return True
        behavior, consumer = route
        if behavior.delay_s:
            due = time.monotonic() + behavior.delay_s
            received = (consumer, number, at)
            heapq.heappush(self._delayed, (due, next(self._sequence), client, received))
            return True
        response = behavior.choose(self._random)
        self._log.append((consumer, number, at, response is OK, 0))
        if response:
            client.sendall(response)
        return response is not GARBAGE


def _route(target: bytes) -> tuple[Behavior, int] | None:
    """Return behavior and consumer of ``/take/3``."""
    root, _, path = target.decode("latin-1").partition("/")
    name, _, consumer = path.partition("/")
    if root or name not in BEHAVIORS or not consumer.isdecimal():
        return None
    return BEHAVIORS[name], int(consumer)
