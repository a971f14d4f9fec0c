"""Measure workers of a pull consumer that receive over HTTP and acknowledge in batches."""

import json
import queue
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Self

from bench.adapters import BenchError, Route
from bench.broker import Hookstation
from bench.figures import Figure, percentile
from bench.load import Load, Plan, whole
from bench.rows.throughput import BATCH, BATCH_CONNECTIONS, GROUPS
from bench.stage import Row, Stage, Values

TOGETHER = 10
"""Messages per receive, and leases per acknowledgement."""
FEW, MANY = 8, 32
"""Numbers of workers, each with a connection of its own."""
PATIENCE_S = 120.0
TIMEOUT_S = 30.0
POLL_S = 0.05
WAKE_UPS = 200
WAIT_S, SETTLED_S = 20, 0.05
RECEIVED_BYTES = 256 * 1024
RECEIPT = {"max": TOGETHER, "lease_s": 120}
ACK = "/api/v1/leases/ack"


@dataclass(slots=True)
class _Worker:
    """One connection that receives and acknowledges until no message is left."""

    route: Route
    wanted: int
    done: list[str]
    """Acknowledged leases of all workers; appending to a list is thread-safe."""
    seconds: list[float] = field(default_factory=list)
    """Duration of each receive that returned messages."""

    def run(self) -> None:
        with _Connection(self.route) as broker:
            end = time.monotonic() + PATIENCE_S
            while len(self.done) < self.wanted and time.monotonic() < end:
                began = time.monotonic()
                messages = broker.post(self.route.path, RECEIPT)["messages"]
                if not messages:
                    time.sleep(POLL_S)
                    continue
                self.seconds.append(time.monotonic() - began)
                leases = {"leases": [one["lease"] for one in messages]}
                self.done += broker.post(ACK, leases)["done"]


class _Connection:
    """A minimal HTTP/1.1 client, since its CPU time is taken from the broker.

    It sends a request as one packet, and reads only the length of a response's headers.
    """

    def __init__(self, route: Route) -> None:
        self.path = route.path
        self._socket = socket.create_connection((route.host, route.port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = [f"Host: {route.host}:{route.port}"]
        lines += [f"{name}: {value}" for name, value in route.headers.items()]
        self._head = "\r\n".join(lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._socket.close()

    def post(self, path: str, body: object) -> Any:
        return json.loads(self.send(path, body, 200))

    def send(self, path: str, body: object, expect: int) -> bytes:
        """Return the body of a response, which must have the status ``expect``."""
        content = json.dumps(body)
        head = f"POST {path} HTTP/1.1\r\n{self._head}\r\nContent-Length: {len(content)}\r\n\r\n"
        self._socket.sendall((head + content).encode())
        answer = b""
        while (status := whole(answer)) is None:
            if not (more := self._socket.recv(RECEIVED_BYTES)):
                raise BenchError(f"{path}: the connection was closed.")
            answer += more
        if status != expect:
            raise BenchError(f"{path}: {status} {answer[-200:]!r}")
        return answer.partition(b"\r\n\r\n")[2]


def receive(stage: Stage) -> Values:
    """Receive and acknowledge waiting messages ten at a time, with few workers and with many."""
    broker = stage.broker
    assert isinstance(broker, Hookstation)
    stage.consumers()
    broker.register({"pull": {"mode": "pull"}})
    few, many = (_taken(stage, broker, workers) for workers in (FEW, MANY))
    return {
        "receive.rate": many.rate,
        **{f"receive.cpu_{group}": ms for group, ms in many.cpu_ms.items()},
        "receive.cpu": sum(many.cpu_ms.values()),
        "receive.p50": many.p50_ms,
        "receive.few_rate": few.rate,
        "receive.few_cpu": sum(few.cpu_ms.values()),
        "receive.few_p50": few.p50_ms,
    }


@dataclass(frozen=True, slots=True)
class _Taken:
    """Measurements with one number of workers."""

    rate: float
    """Messages per second."""
    p50_ms: float
    """Median of receives that returned messages."""
    cpu_ms: dict[str, float]
    """CPU milliseconds per message of each group of processes."""


def _taken(stage: Stage, broker: Hookstation, number: int) -> _Taken:
    count = stage.sizes.messages
    _fill(stage, broker, count)
    done: list[str] = []
    workers = [_Worker(broker.pull("pull"), count, done) for _ in range(number)]
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
    before, began = stage.look(), time.monotonic()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(POLL_S)
        stage.tell(len(done), count)
    seconds, used = time.monotonic() - began, stage.look().since(before)
    if len(done) != count or len(set(done)) != count:
        raise BenchError(f"{len(set(done))} of {count} were acknowledged.")
    took = sorted(second for worker in workers for second in worker.seconds)
    return _Taken(
        rate=count / seconds,
        p50_ms=took[len(took) // 2] * 1e3,
        cpu_ms={group: used[group] / count * 1e3 for group in used},
    )


def waiting(stage: Stage) -> Values:
    """Measure repeatedly how soon a waiting worker gets a message."""
    broker = stage.broker
    assert isinstance(broker, Hookstation)
    stage.consumers()
    broker.register({"pull": {"mode": "pull"}})
    count = min(WAKE_UPS, stage.sizes.messages)
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()
    received: queue.SimpleQueue[float] = queue.SimpleQueue()

    def work() -> None:
        with _Connection(broker.pull("pull")) as place:
            for _ in range(count + 1):
                asked.put(None)
                found: list[Any] = []
                while not found:
                    found = place.post(place.path, {"max": 1, "wait_s": WAIT_S})["messages"]
                received.put(time.monotonic())
                place.post(ACK, {"leases": [one["lease"] for one in found]})

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    took, answered, before = list[float](), list[float](), stage.look()
    with _Connection(broker.single()) as producer:
        for number in range(count + 1):
            asked.get(timeout=PATIENCE_S)
            time.sleep(SETTLED_S)  # the worker waits by now
            began = time.monotonic()
            producer.send(producer.path, {"number": number}, 202)
            answer = time.monotonic() - began
            seconds = received.get(timeout=PATIENCE_S) - began
            if number:  # the first one is a warm-up
                took.append(seconds * 1e3)
                answered.append(answer * 1e3)
            stage.tell(number, count)
    worker.join(PATIENCE_S)
    used = stage.look().since(before)
    return {
        "waiting.p50": percentile(took, 0.5),
        "waiting.p99": percentile(took, 0.99),
        "waiting.answered": percentile(answered, 0.5),
        "waiting.cpu": sum(used.values()) / (count + 1) * 1e3,
    }


def _fill(stage: Stage, broker: Hookstation, count: int) -> None:
    before = broker.depth()
    load = Load(Plan(broker.batch(), 1, count, BATCH_CONNECTIONS, together=BATCH))
    end = time.monotonic() + PATIENCE_S
    try:
        while load.is_running or broker.depth() < before + count:
            if time.monotonic() > end:
                raise BenchError("The messages do not get to the consumer.")
            time.sleep(POLL_S)
    finally:
        load.close()


ROWS = (
    Row(
        "receive",
        (
            Figure(
                "receive.rate",
                f"pull: received and acknowledged messages/s, ten at a time, {MANY} workers",
                "/s",
                must=3_000,
                aim=5_000,
                is_more_better=True,
                digits=0,
            ),
            Figure("receive.p50", "- a receive that brings ten, p50", "ms"),
            Figure("receive.cpu", "- CPU per message", "ms", digits=3),
            *(Figure(f"receive.cpu_{name}", f"- of it {name}", "ms", digits=3) for name in GROUPS),
            Figure("receive.few_rate", f"- with {FEW} workers", "/s", digits=0),
            Figure(
                "receive.few_p50", f"- a receive that brings ten, {FEW} workers, p50", "ms", 10, 5
            ),
            Figure("receive.few_cpu", f"- CPU per message, {FEW} workers", "ms", digits=3),
        ),
        receive,
        ours_alone=True,
    ),
    Row(
        "waiting",
        (
            Figure(
                "waiting.p50",
                "pull: POST sent to received by a worker that waits, p50",
                "ms",
                must=5.0,
                aim=3.0,
                digits=2,
            ),
            Figure("waiting.p99", "- the same, p99", "ms", must=20.0, aim=10.0, digits=2),
            Figure("waiting.answered", "- POST sent to acknowledged, p50", "ms", digits=2),
            Figure("waiting.cpu", "- CPU per message, with its 50 ms of waiting", "ms", digits=2),
        ),
        waiting,
        ours_alone=True,
    ),
)
