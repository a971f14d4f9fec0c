"""Measure pull consumers: receiving in bulk, waiting for a message, and the SQS protocol.

Workers receive over HTTP and acknowledge in batches. Clients of SQS do the same work as clients of
the REST API, in turns.
"""

import json
import queue
import re
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from statistics import median
from typing import Any, Self

import boto3
import urllib3
from botocore.config import Config

from bench.adapters import BenchError, Route, body, number_in
from bench.load import SPAWN, connect, request_head, status_of
from bench.scenarios.throughput import BATCH
from bench.stage import Figure, Scenario, Stage, Values, cpu_figures, cpu_values, percentile

FEW, MANY = 8, 32
"""Numbers of workers, each with a connection of its own."""
TOGETHER = 10
"""Messages per receive, and leases per acknowledgement."""
MAX_S = 120.0
TIMEOUT_S = 30.0
POLL_S = 0.05
RECEIVED_BYTES = 256 * 1024
ACK = "/api/v1/leases/ack"
WAKE_UPS = 200
WAIT_S, BEFORE_SENDING_S = 20, 0.05

CLIENTS = 4
"""Processes of one protocol, each with a persistent connection."""
SQS_TOGETHER = (10, 1)
"""Messages per request."""
ROUNDS = 4
"""Rounds in which both do the same work, in alternating order."""
WARM_UP = 40
SQS_TIMEOUT_S = 60.0


class _Connection:
    """A minimal HTTP/1.1 client, since its CPU time is taken from the broker.

    It sends a request as one packet, and reads only the length of a response's headers.
    """

    def __init__(self, route: Route) -> None:
        self.path, self._head = route.path, request_head(route)
        self._socket = connect(route, TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def post(self, path: str, values: object, expected: int = 200) -> Any:
        """Return the values of a response, which must have the expected status."""
        content = json.dumps(values).encode()
        head = b"POST %s HTTP/1.1\r\n%s%d\r\n\r\n" % (path.encode(), self._head, len(content))
        self._socket.sendall(head + content)
        response = b""
        while (status := status_of(response)) is None:
            if not (more := self._socket.recv(RECEIVED_BYTES)):
                raise BenchError(f"{path}: the connection was closed.")
            response += more
        if status != expected:
            raise BenchError(f"{path}: {status} {response[-200:]!r}")
        return json.loads(response.partition(b"\r\n\r\n")[2])


def _work(route: Route, wanted: int, done: list[str]) -> list[float]:
    """Receive and acknowledge until no message is left.

    ``done`` are the acknowledged leases of all workers; appending to a list is thread-safe. Returns
    the seconds of each receive that returned messages.
    """
    seconds = []
    end = time.monotonic() + MAX_S
    with _Connection(route) as broker:
        while len(done) < wanted and time.monotonic() < end:
            began = time.monotonic()
            messages = broker.post(route.path, {"max": TOGETHER, "lease_s": 120})["messages"]
            if not messages:
                time.sleep(POLL_S)
                continue
            seconds.append(time.monotonic() - began)
            leases = {"leases": [message["lease"] for message in messages]}
            done += broker.post(ACK, leases)["done"]
    return seconds


def receive(stage: Stage) -> Values:
    """Receive and acknowledge waiting messages ten at a time, with few workers and with many."""
    _register(stage, "pull")
    few, many = _receive_with(stage, FEW), _receive_with(stage, MANY)
    return many | {f"few_{name}": few[name] for name in ("rate", "cpu", "p50")}


def _register(stage: Stage, consumer: str) -> None:
    stage.consumers()
    stage.hookstation.register({consumer: {"mode": "pull"}})


def _receive_with(stage: Stage, workers: int) -> Values:
    total = stage.sizes.messages
    fill(stage, total)
    done: list[str] = []
    route = stage.hookstation.pull("pull")
    with ThreadPoolExecutor(workers) as pool:
        before, began = stage.cpu_times(), time.monotonic()
        futures = [pool.submit(_work, route, total, done) for _ in range(workers)]
        while not all(future.done() for future in futures):
            time.sleep(POLL_S)
            stage.progress(len(done), total)
        seconds, used = time.monotonic() - began, stage.cpu_times().since(before)
    took = [second for future in futures for second in future.result()]
    if len(done) != total or len(set(done)) != total:
        raise BenchError(f"{len(set(done))} of {total} were acknowledged.")
    return {
        "rate": total / seconds,
        "p50": percentile(took, 0.5) * 1e3,
        **cpu_values(used, 1e3 / total),
    }


def fill(stage: Stage, total: int) -> None:
    """Publish messages, and wait until they are fanned out."""
    before = stage.hookstation.depth()
    end = time.monotonic() + MAX_S
    stage.deliver(total, [], stage.batch(), **BATCH)
    while stage.hookstation.depth() < before + total:
        if time.monotonic() > end:
            raise BenchError("The messages do not get to the consumer.")
        time.sleep(POLL_S)


def wait(stage: Stage) -> Values:
    """Measure repeatedly how soon a waiting worker gets a message."""
    _register(stage, "pull")
    route = stage.hookstation.pull("pull")
    total = min(WAKE_UPS, stage.sizes.messages)
    waiting: queue.SimpleQueue[None] = queue.SimpleQueue()
    received: queue.SimpleQueue[float] = queue.SimpleQueue()

    def work() -> None:
        with _Connection(route) as broker:
            for _ in range(total + 1):
                waiting.put(None)
                messages: list[Any] = []
                while not messages:
                    messages = broker.post(route.path, {"max": 1, "wait_s": WAIT_S})["messages"]
                received.put(time.monotonic())
                broker.post(ACK, {"leases": [message["lease"] for message in messages]})

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    took_ms: list[float] = []
    answered_ms: list[float] = []
    before = stage.cpu_times()
    with _Connection(stage.broker.single()) as producer:
        for number in range(total + 1):
            waiting.get(timeout=MAX_S)
            time.sleep(BEFORE_SENDING_S)  # the worker waits by now
            began = time.monotonic()
            producer.post(producer.path, {"number": number}, 202)
            answered_ms.append((time.monotonic() - began) * 1e3)
            took_ms.append((received.get(timeout=MAX_S) - began) * 1e3)
            stage.progress(number, total)
    worker.join(MAX_S)
    used = stage.cpu_times().since(before)
    return {  # the first one is a warm-up
        "p50": percentile(took_ms[1:], 0.5),
        "p99": percentile(took_ms[1:], 0.99),
        "answered": percentile(answered_ms[1:], 0.5),
        "cpu": sum(used.values()) / (total + 1) * 1e3,
    }


class _RestClient:
    """A client of the REST API with JSON, through urllib3 like boto3."""

    def __init__(self, url: str, key: str, channel: str, consumer: str) -> None:
        self._api = f"{url}/api/v1"
        self._messages = f"/channels/{channel}/messages"
        self._receive = f"/channels/{channel}/consumers/{consumer}/receive"
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._http = urllib3.PoolManager(headers=headers, timeout=SQS_TIMEOUT_S, retries=False)

    def send(self, bodies: Sequence[str]) -> None:
        if len(bodies) == 1:
            self._post(self._messages, bodies[0], 202)
            return
        items = json.dumps([{"body": text} for text in bodies])
        results = self._post(f"{self._messages}/batch", items, 207)["items"]
        if any(result["status"] != 202 for result in results):
            raise BenchError("The REST API did not store all messages of a batch.")

    def receive(self, limit: int) -> list[str]:
        messages = self._post(self._receive, json.dumps({"max": limit}), 200)["messages"]
        if messages:
            leases = json.dumps({"leases": [message["lease"] for message in messages]})
            if len(self._post("/leases/ack", leases, 200)["done"]) != len(messages):
                raise BenchError("The REST API did not acknowledge all that it gave.")
        return [message["body"] for message in messages]

    def _post(self, path: str, content: str, expected: int) -> Any:
        response = self._http.request("POST", self._api + path, body=content.encode())
        if response.status != expected:
            raise BenchError(f"{path}: {response.status} {response.data[:200]!r}")
        return response.json()


class _SqsClient:
    def __init__(self, url: str, queue: str, key_id: str, secret: str) -> None:
        self._sqs = boto3.client(
            "sqs",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id=key_id,
            aws_secret_access_key=secret,
            config=Config(retries={"total_max_attempts": 1}, read_timeout=SQS_TIMEOUT_S),
        )
        self._url = self._sqs.get_queue_url(QueueName=queue)["QueueUrl"]

    def send(self, bodies: Sequence[str]) -> None:
        if len(bodies) == 1:
            self._sqs.send_message(QueueUrl=self._url, MessageBody=bodies[0])
            return
        entries = [{"Id": str(place), "MessageBody": text} for place, text in enumerate(bodies)]
        done = self._sqs.send_message_batch(QueueUrl=self._url, Entries=entries)
        if len(done["Successful"]) != len(bodies):
            raise BenchError("The SQS API did not store all messages of a batch.")

    def receive(self, limit: int) -> list[str]:
        found = self._sqs.receive_message(QueueUrl=self._url, MaxNumberOfMessages=limit)
        messages = found.get("Messages", [])
        handles = [message["ReceiptHandle"] for message in messages]
        if len(handles) == 1:
            self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=handles[0])
        elif handles:
            entries = [{"Id": str(n), "ReceiptHandle": it} for n, it in enumerate(handles)]
            done = self._sqs.delete_message_batch(QueueUrl=self._url, Entries=entries)
            if len(done["Successful"]) != len(messages):
                raise BenchError("The SQS API did not delete all that it gave.")
        return [message["Body"] for message in messages]


_clients: list[_RestClient | _SqsClient] = []
"""The client of a process that sends or receives."""


def open_client(kind: type[_RestClient] | type[_SqsClient], *arguments: str) -> None:
    _clients.append(kind(*arguments))


def send(numbers: range, together: int) -> list[int]:
    for first in range(numbers.start, numbers.stop, together):
        some = range(first, min(first + together, numbers.stop))
        _clients[0].send([body(number).decode() for number in some])
    return list(numbers)


def receive_as_many(numbers: range, together: int) -> list[int]:
    """Receive as many messages with this process's client; returns their numbers."""
    found: list[int] = []
    end = time.monotonic() + SQS_TIMEOUT_S
    while (missing := len(numbers) - len(found)) and time.monotonic() < end:
        texts = _clients[0].receive(min(together, missing))
        found += [number_in(text.encode()) or 0 for text in texts]
    return found


WORK = {"send": send, "receive": receive_as_many}
PROTOCOLS: dict[str, type[_RestClient] | type[_SqsClient]] = {
    "boto3": _SqsClient,
    "rest": _RestClient,
}


@dataclass(slots=True)
class _Cost:
    """One kind of work through one protocol, in each of the rounds."""

    seconds: list[float] = field(default_factory=list)
    """Seconds per message."""
    cpu_ms: list[float] = field(default_factory=list)
    """CPU milliseconds per message of broker and database."""


def compare_sqs(stage: Stage) -> Values:
    """Send and receive messages through boto3 and through the REST API, in turns."""
    broker = stage.hookstation
    _register(stage, "sqs")
    key = broker.admin_key("sqs", "--sigv4")
    credentials = dict(re.findall(r"^(AWS_\w+)=(.*)$", key, re.MULTILINE))
    secret = credentials["AWS_ACCESS_KEY_ID"], credentials["AWS_SECRET_ACCESS_KEY"]
    arguments = {
        "boto3": (broker.address, broker.channel, *secret),
        "rest": (broker.address, key.split()[0], broker.channel, "sqs"),
    }
    size = max(WARM_UP, stage.sizes.messages // 10)
    costs = {place: _Cost() for place in product(WORK, SQS_TOGETHER, PROTOCOLS)}
    with ExitStack() as stack:
        # A pool of its own for each process, so that all of them get the same share.
        processes = {
            name: [
                stack.enter_context(
                    ProcessPoolExecutor(1, SPAWN, partial(open_client, kind, *arguments[name]))
                )
                for _ in range(CLIENTS)
            ]
            for name, kind in PROTOCOLS.items()
        }
        for number, pools in enumerate(processes.values()):
            for work in WORK:
                _divide(pools, work, range(number * WARM_UP, (number + 1) * WARM_UP), TOGETHER)
        starts = count(1_000_000, size)
        for number in range(ROUNDS):
            for together in SQS_TOGETHER:
                for name in sorted(PROTOCOLS, reverse=bool(number % 2)):
                    start = next(starts)
                    numbers = range(start, start + size)
                    for work in WORK:
                        before, began = stage.cpu_times(), time.monotonic()
                        _divide(processes[name], work, numbers, together)
                        cost = costs[work, together, name]
                        cost.seconds.append((time.monotonic() - began) / size)
                        used = stage.cpu_times().since(before)
                        cost.cpu_ms.append(sum(used.values()) / size * 1e3)
            stage.progress(number + 1, ROUNDS)
    return dict(_sqs_values(costs))


def _divide(pools: Sequence[ProcessPoolExecutor], work: str, numbers: range, together: int) -> None:
    """Let each process do its share. Raises BenchError unless all of these messages were found."""
    share = -(-len(numbers) // len(pools))
    parts = [numbers[place * share : (place + 1) * share] for place in range(len(pools))]
    futures = [
        pool.submit(WORK[work], part, together) for pool, part in zip(pools, parts, strict=True)
    ]
    found = {number for future in futures for number in future.result()}
    if found != set(numbers):
        raise BenchError(f"{work}: {len(found & set(numbers))} of {len(numbers)} messages.")


def _sqs_values(costs: dict[tuple[str, int, str], _Cost]) -> Iterable[tuple[str, float]]:
    for work, together in product(WORK, SQS_TOGETHER):
        rest, boto3_ = costs[work, together, "rest"], costs[work, together, "boto3"]
        name = f"{work}{together}"
        pairs = zip(boto3_.seconds, rest.seconds, strict=True)
        yield name, median(theirs / ours for theirs, ours in pairs)
        for protocol, cost in (("boto3", boto3_), ("rest", rest)):
            yield f"{name}_{protocol}", 1 / median(cost.seconds)
            yield f"{name}_{protocol}_cpu", median(cost.cpu_ms)


def _sqs_figures() -> Iterable[Figure]:
    for work, together in product(WORK, SQS_TOGETHER):
        done = "sent" if work == "send" else "received and deleted"
        many = "one in a request" if together == 1 else "ten in a request"
        title = f"SQS: messages/s {done}, {many}: the REST API's, divided by those through boto3"
        name = f"{work}{together}"
        yield Figure(name, title, "x", must=2.0, aim=1.5)
        for protocol, title in (("boto3", "through boto3"), ("rest", "through the REST API")):
            yield Figure(f"{name}_{protocol}", f"- {title}", "/s")
            yield Figure(f"{name}_{protocol}_cpu", "- - CPU of broker and database", "ms", digits=3)


RECEIVE = Scenario(
    "receive",
    receive,
    [
        Figure(
            "rate",
            f"pull: received and acknowledged messages/s, ten at a time, {MANY} workers",
            "/s",
            must=3_000,
            aim=5_000,
            better="more",
        ),
        Figure("p50", "- a receive that brings ten, p50", "ms"),
        Figure("cpu", "- CPU per message", "ms", digits=3),
        *cpu_figures(),
        Figure("few_rate", f"- with {FEW} workers", "/s"),
        Figure("few_p50", f"- a receive that brings ten, {FEW} workers, p50", "ms", 10, 5),
        Figure("few_cpu", f"- CPU per message, {FEW} workers", "ms", digits=3),
    ],
    hookstation_only=True,
)
WAITING = Scenario(
    "waiting",
    wait,
    [
        Figure("p50", "pull: POST sent to received by a worker that waits, p50", "ms", 5.0, 3.0, 2),
        Figure("p99", "- the same, p99", "ms", 20.0, 10.0, 2),
        Figure("answered", "- POST sent to acknowledged, p50", "ms", digits=2),
        Figure("cpu", "- CPU per message, with its 50 ms of waiting", "ms", digits=2),
    ],
    hookstation_only=True,
)
SQS = Scenario("sqs", compare_sqs, list(_sqs_figures()), in_quick=False, hookstation_only=True)
