"""Publish numbered messages, and follow them through a broker to the sink.

The load generator is a process that publishes over many connections and logs responses. In a closed
loop each connection sends its next request after the last response. In an open loop requests are
sent at a fixed rate, independent of responses. A request whose connection breaks is logged as
unanswered and not repeated, since it is unknown whether it was stored. Later messages wait until
the broker is back.
"""

import mmap
import multiprocessing
import os
import select
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from bench.adapters import BODY_BYTES, BenchError, Progress, Route, body, no_progress

UNANSWERED = 0
"""Stands in place of a status code."""
MAX_CONNECTIONS = 512
RETRY_S = 0.05
POLL_S = 0.02
STALLED_AFTER_S = 30.0
"""Seconds without progress after which messages count as lost."""
DUPLICATES_S = 0.3
"""Seconds to wait for duplicates."""
SPAWN = multiprocessing.get_context("spawn")

Record = tuple[int, int, int, int, int]
RECORD = struct.Struct("<5Q")
COUNT = struct.Struct("<Q")
START = 64
CAPACITY = 4_000_000
"""Records reserved; only written ones take memory."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a file on disk would disturb the database's syncs


class Log:
    """Records of five numbers in shared memory, for one writer and one reader."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        (self._count,) = COUNT.unpack_from(self._memory)

    @classmethod
    def create(cls) -> Self:
        """Create an empty log; `remove` it when done."""
        folder = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        descriptor, name = tempfile.mkstemp(prefix="hookstation-bench-", dir=folder)
        os.ftruncate(descriptor, START + CAPACITY * RECORD.size)
        os.close(descriptor)
        return cls(Path(name))

    def append(self, record: Record) -> None:
        """Append a record; readers see it once it is complete."""
        RECORD.pack_into(self._memory, START + self._count * RECORD.size, *record)
        self._count += 1
        COUNT.pack_into(self._memory, 0, self._count)

    def __len__(self) -> int:
        (count,) = COUNT.unpack_from(self._memory)
        return int(count)

    def read(self, start: int = 0) -> list[Record]:
        begin, end = START + start * RECORD.size, START + len(self) * RECORD.size
        return list(RECORD.iter_unpack(self._memory[begin:end]))

    def remove(self) -> None:
        self._memory.close()
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Plan:
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
    size: int = BODY_BYTES
    """Bytes of a message."""


def generate(path: Path, plan: Plan, parent: int) -> None:
    """Run in the process until everything is published, or the parent has died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Generator(plan, Log(path)).run(parent)


@dataclass(slots=True)
class _Connection:
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
        self._open: dict[int, _Connection] = {}
        self._idle: list[_Connection] = []
        self._epoll = select.epoll()
        self._retry_at = 0.0
        self._head = b"POST %s HTTP/1.1\r\n" % plan.route.path.encode() + request_head(plan.route)

    def run(self, parent: int) -> None:
        start, sent = time.monotonic(), 0
        while os.getppid() == parent:
            wait = RETRY_S
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
            for descriptor, _ in self._epoll.poll(max(0.0, min(wait, RETRY_S))):
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

    def _connect(self) -> _Connection | None:
        limit = self._plan.connections if self._plan.rate is None else MAX_CONNECTIONS
        if len(self._open) >= limit or time.monotonic() < self._retry_at:
            return None
        try:
            client = connect(self._plan.route)
        except OSError:
            self._retry_at = time.monotonic() + RETRY_S
            return None
        connection = self._open[client.fileno()] = _Connection(client)
        self._epoll.register(client, select.EPOLLIN)
        return connection

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(1_048_576)
        except OSError:
            data = b""
        if not data:
            self._lose(connection)
            return
        connection.unread += data
        if (status := status_of(connection.unread)) is not None:
            self._record(connection, status)
            connection.unread, connection.count = b"", 0
            self._idle.append(connection)

    def _lose(self, connection: _Connection) -> None:
        if connection.count:
            self._record(connection, UNANSWERED)
        elif connection in self._idle:
            self._idle.remove(connection)
        del self._open[connection.socket.fileno()]
        connection.socket.close()

    def _record(self, of: _Connection, status: int) -> None:
        self._log.append((of.first, of.count, of.sent_at, time.monotonic_ns(), status))


def connect(route: Route, timeout_s: float = 5.0) -> socket.socket:
    """Open a connection to the server of a route. Raises OSError."""
    client = socket.create_connection((route.host, route.port), timeout_s)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def request_head(route: Route) -> bytes:
    """Return the headers of a request, up to the value of Content-Length."""
    lines = [f"Host: {route.host}:{route.port}"]
    lines += [f"{name}: {value}" for name, value in route.headers.items()]
    return "\r\n".join([*lines, "Content-Length: "]).encode()


def status_of(data: bytes) -> int | None:
    """Return the status of a complete HTTP response; None while it is incomplete."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = data[:end]
    if (length := content_length(head)) is not None:
        is_complete = len(data) >= end + 4 + length
    else:
        is_complete = b"chunked" not in head.lower() or data.endswith(b"0\r\n\r\n")
    return int(data[9:12]) if is_complete else None


def content_length(head: bytes) -> int | None:
    """Return the Content-Length in the head of a request or response."""
    at = head.lower().find(b"\r\ncontent-length:")
    return int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else None


@dataclass(slots=True)
class Flow:
    """The results of the messages of one plan. Times are monotonic nanoseconds."""

    sent: dict[int, int] = field(default_factory=dict)
    """When each acknowledged message was sent, by number."""
    answered: dict[int, int] = field(default_factory=dict)
    """When its response arrived, by number."""
    unanswered: int = 0
    """Messages whose connection broke, so that it is unknown whether they were stored."""
    arrived: dict[int, dict[int, int]] = field(default_factory=dict)
    """When each message first reached each consumer."""
    duplicates: int = 0

    @property
    def started(self) -> int:
        """When the first message was sent."""
        return min(self.sent.values())

    @property
    def ended(self) -> int:
        """When the last message reached its last consumer."""
        return max(max(times.values(), default=0) for times in self.arrived.values())

    @property
    def deliveries(self) -> int:
        """Delivered pairs of message and consumer."""
        return sum(len(times) for times in self.arrived.values())

    @property
    def seconds(self) -> float:
        """Seconds from the first message sent to the last one delivered."""
        return (self.ended - self.started) / 1e9

    @property
    def rate(self) -> float:
        return self.deliveries / self.seconds

    @property
    def accepted_rate(self) -> float:
        """Messages per second, from the first one sent to the last one acknowledged."""
        return len(self.sent) / (max(self.answered.values()) - self.started) * 1e9

    def latencies_ms(self, consumer: int) -> list[float]:
        at = self.arrived[consumer]
        return [(at[number] - sent) / 1e6 for number, sent in self.sent.items() if number in at]

    def waits_ms(self) -> list[float]:
        """Milliseconds from sending to acknowledgement, for each message."""
        return [(self.answered[number] - sent) / 1e6 for number, sent in self.sent.items()]

    def lost(self) -> int:
        """Return the number of missing deliveries of acknowledged messages."""
        return sum(len(self.sent.keys() - times.keys()) for times in self.arrived.values())


class Following:
    """A running plan. As a context manager it stops the process that publishes at the end."""

    def __init__(self, plan: Plan, sink: Log, consumers: Sequence[int]) -> None:
        self._plan, self._sink = plan, sink
        self._received, self._responses = len(sink), 0
        self.flow = Flow(arrived={consumer: {} for consumer in consumers})
        self._refusal = ""
        self._log = Log.create()
        """(first number, count, sent ns, answered ns, status) of each request."""
        arguments = (self._log.path, plan, os.getpid())
        self._process = SPAWN.Process(target=generate, args=arguments, daemon=True)
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.join()
        self._log.remove()

    def poll(self) -> bool:
        """Read new records; returns whether there were any."""
        # The sink first: acknowledgements read after it can only add messages to wait for.
        received, responses = self._sink.read(self._received), self._log.read(self._responses)
        self._received += len(received)
        self._responses += len(responses)
        numbers = range(self._plan.first, self._plan.first + self._plan.count)
        for consumer, number, at, _, _ in received:
            times = self.flow.arrived.get(consumer)
            if times is None or number not in numbers:
                continue
            if number in times:
                self.flow.duplicates += 1
            else:
                times[number] = at
        for first, count, sent_at, answered_at, status in responses:
            some = range(first, first + count)
            if status in self._plan.route.accepted:
                self.flow.sent.update(dict.fromkeys(some, sent_at))
                self.flow.answered.update(dict.fromkeys(some, answered_at))
            elif status == UNANSWERED:
                self.flow.unanswered += count
            else:
                self._refusal = self._refusal or f"Message {first} was refused: status {status}."
        return bool(received or responses)

    def is_done(self) -> bool:
        """Whether all messages were sent and all acknowledged ones have arrived."""
        if self._process.is_alive():
            return False
        self.poll()
        expected = len(self.flow.sent) * len(self.flow.arrived)
        return self.flow.deliveries >= expected and not self.flow.lost()

    def finish(
        self, progress: Progress = no_progress, stalled_after_s: float = STALLED_AFTER_S
    ) -> Flow:
        """Wait until everything is delivered. Raises BenchError when a message is refused or lost.

        The wait ends after `stalled_after_s` seconds without progress.
        """
        expected = self._plan.count * len(self.flow.arrived)
        moved_at = time.monotonic()
        while not self._refusal and not self.is_done():
            if self.poll():
                moved_at = time.monotonic()
                progress(self.flow.deliveries, expected)
            if time.monotonic() - moved_at > stalled_after_s:
                break
            time.sleep(POLL_S)
        time.sleep(DUPLICATES_S)
        self.poll()
        if self._refusal:
            raise BenchError(self._refusal)
        if lost := self.flow.lost():
            raise BenchError(f"LOST: {lost:,} deliveries of acknowledged messages never came.")
        if not self.flow.sent:
            raise BenchError("No message was acknowledged.")
        return self.flow

    def wait_for(self, deliveries: int, progress: Progress, within_s: float) -> None:
        """Wait for a number of deliveries. Raises BenchError after `within_s` seconds."""
        end = time.monotonic() + within_s
        while self.flow.deliveries < deliveries:
            if time.monotonic() > end:
                raise BenchError(f"{deliveries:,} messages did not arrive in time.")
            progress(self.flow.deliveries, deliveries)
            time.sleep(POLL_S)
            self.poll()
