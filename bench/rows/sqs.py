"""Compare the SQS protocol with the REST API, doing the same work in turns."""

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, Literal, Protocol

import boto3
import urllib3
from botocore.config import Config

from bench.adapters import BenchError
from bench.bodies import body, number_in
from bench.broker import Hookstation
from bench.figures import Figure
from bench.load import SPAWN
from bench.stage import Row, Stage, Values

PROCESSES = 4
"""Number of clients, each with a persistent connection."""
TOGETHER = (10, 1)
"""Messages per request."""
ROUNDS = 4
"""Rounds in which both do the same work, in alternating order."""
WARM_UP = 40
TIMEOUT_S = 60.0
Work = Literal["send", "receive"]
WORKS: tuple[Work, ...] = ("send", "receive")
Way = Literal["rest", "boto3"]


class _Client(Protocol):
    """A client of the queue."""

    def send(self, bodies: Sequence[str]) -> None:
        """Send messages; returns when all are stored."""

    def receive(self, limit: int) -> list[str]:
        """Receive and acknowledge messages; returns their bodies."""


@dataclass(frozen=True, slots=True)
class _Rest:
    """Clients of the REST API with JSON, through urllib3 like boto3."""

    url: str
    key: str
    channel: str
    consumer: str

    def client(self) -> _Client:
        """Return a client with a connection of its own."""
        return _RestClient(self)


class _RestClient:
    def __init__(self, at: _Rest) -> None:
        self._base = f"{at.url}/api/v1"
        self._messages = f"/channels/{at.channel}/messages"
        self._receive = f"/channels/{at.channel}/consumers/{at.consumer}/receive"
        headers = {"Authorization": f"Bearer {at.key}", "Content-Type": "application/json"}
        self._http = urllib3.PoolManager(headers=headers, timeout=TIMEOUT_S, retries=False)

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
            leases = json.dumps({"leases": [one["lease"] for one in messages]})
            if len(self._post("/leases/ack", leases, 200)["done"]) != len(messages):
                raise BenchError("The REST API did not acknowledge all that it gave.")
        return [one["body"] for one in messages]

    def _post(self, path: str, content: str, expect: int) -> Any:
        answer = self._http.request("POST", self._base + path, body=content.encode())
        if answer.status != expect:
            raise BenchError(f"{path}: {answer.status} {answer.data[:200]!r}")
        return answer.json()


@dataclass(frozen=True, slots=True)
class _Boto:
    """Clients of the SQS protocol with their credentials."""

    url: str
    queue: str
    key_id: str
    secret: str

    def client(self) -> _Client:
        """Return a client with a connection of its own."""
        return _BotoClient(self)


class _BotoClient:
    def __init__(self, at: _Boto) -> None:
        self._sqs = boto3.client(
            "sqs",
            endpoint_url=at.url,
            region_name="us-east-1",
            aws_access_key_id=at.key_id,
            aws_secret_access_key=at.secret,
            config=Config(retries={"total_max_attempts": 1}, read_timeout=TIMEOUT_S),
        )
        self._url = self._sqs.get_queue_url(QueueName=at.queue)["QueueUrl"]

    def send(self, bodies: Sequence[str]) -> None:
        if len(bodies) == 1:
            self._sqs.send_message(QueueUrl=self._url, MessageBody=bodies[0])
            return
        entries = [{"Id": str(place), "MessageBody": text} for place, text in enumerate(bodies)]
        done = self._sqs.send_message_batch(QueueUrl=self._url, Entries=entries)
        if len(done["Successful"]) != len(bodies):
            raise BenchError("The SQS door did not store all messages of a batch.")

    def receive(self, limit: int) -> list[str]:
        found = self._sqs.receive_message(QueueUrl=self._url, MaxNumberOfMessages=limit)
        messages = found.get("Messages", [])
        if len(messages) == 1:
            handle = messages[0]["ReceiptHandle"]
            self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=handle)
        elif messages:
            entries = [
                {"Id": str(place), "ReceiptHandle": one["ReceiptHandle"]}
                for place, one in enumerate(messages)
            ]
            done = self._sqs.delete_message_batch(QueueUrl=self._url, Entries=entries)
            if len(done["Successful"]) != len(messages):
                raise BenchError("The SQS door did not delete all that it gave.")
        return [one["Body"] for one in messages]


@dataclass(frozen=True, slots=True)
class _Task:
    """The next work of one process."""

    work: Work
    numbers: range
    """Numbers of the messages to send; for receiving only the count matters."""
    together: int


def serve(place: _Rest | _Boto, pipe: Connection) -> None:
    """Run a process that does each task it gets, and returns the numbers of the messages."""
    client = place.client()
    while isinstance(task := pipe.recv(), _Task):
        try:
            pipe.send(_sent(client, task) if task.work == "send" else _received(client, task))
        except Exception as error:  # any exception fails the row
            pipe.send(f"{type(error).__name__}: {error}")


def _sent(client: _Client, task: _Task) -> list[int]:
    numbers = task.numbers
    for first in range(numbers.start, numbers.stop, task.together):
        some = range(first, min(first + task.together, numbers.stop))
        client.send([body(number).decode() for number in some])
    return list(numbers)


def _received(client: _Client, task: _Task) -> list[int]:
    found: list[int] = []
    end = time.monotonic() + TIMEOUT_S
    while (missing := len(task.numbers) - len(found)) and time.monotonic() < end:
        texts = client.receive(min(task.together, missing))
        found += [number_in(text.encode()) or 0 for text in texts]
    return found


class _Team:
    """The processes of one protocol."""

    def __init__(self, place: _Rest | _Boto, stack: ExitStack) -> None:
        self._pipes: list[Connection] = []
        for _ in range(PROCESSES):
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=serve, args=(place, theirs), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(ours.close)
            stack.callback(ours.send, None)
            self._pipes.append(ours)

    def do(self, work: Work, numbers: range, together: int) -> set[int]:
        """Divide the work; returns the numbers of all messages. Raises BenchError."""
        share = -(-len(numbers) // PROCESSES)
        for place, pipe in enumerate(self._pipes):
            some = numbers[place * share : (place + 1) * share]
            pipe.send(_Task(work, some, together))
        answers = [pipe.recv() for pipe in self._pipes]
        if texts := [answer for answer in answers if isinstance(answer, str)]:
            raise BenchError(texts[0])
        return {number for answer in answers for number in answer}


@dataclass(slots=True)
class _Measured:
    """One kind of work with one protocol, in each of the rounds."""

    seconds: list[float] = field(default_factory=list)
    """Seconds per message."""
    cpu_ms: list[float] = field(default_factory=list)
    """CPU milliseconds per message of broker and database."""


def measure(stage: Stage) -> Values:
    """Send and receive messages through boto3 and through the REST API, in turns."""
    broker = stage.broker
    assert isinstance(broker, Hookstation)
    stage.consumers()
    broker.register({"sqs": {"mode": "pull"}})
    count = max(WARM_UP, stage.sizes.messages // 10)
    with ExitStack() as stack:
        teams: dict[Way, _Team] = {
            way: _Team(place, stack) for way, place in _places(broker).items()
        }
        numbers = _ranges(WARM_UP)
        for team in teams.values():
            _round(stage, team, numbers, TOGETHER[0])
        measured = {
            (work, together, way): _Measured()
            for work in WORKS
            for together in TOGETHER
            for way in teams
        }
        numbers = _ranges(count, first=1_000_000)
        for number in range(ROUNDS):
            for together in TOGETHER:
                for way in sorted(teams, reverse=bool(number % 2)):
                    for work, seconds, cpu in _round(stage, teams[way], numbers, together):
                        one = measured[work, together, way]
                        one.seconds.append(seconds / count)
                        one.cpu_ms.append(cpu / count * 1e3)
            stage.tell(number + 1, ROUNDS)
    return dict(_values(measured))


def _ranges(size: int, first: int = 1) -> Iterable[range]:
    while True:
        yield range(first, first + size)
        first += size


def _round(
    stage: Stage, team: _Team, numbers: Iterable[range], together: int
) -> Iterable[tuple[Work, float, float]]:
    """Send and receive some messages; returns seconds of each, and the broker's CPU seconds."""
    these = next(iter(numbers))
    done: list[tuple[Work, float, float]] = []
    for work in WORKS:
        before, began = stage.look(), time.monotonic()
        found = team.do(work, these, together)
        seconds = time.monotonic() - began
        if found != set(these):
            raise BenchError(f"{work}: {len(found & set(these))} of {len(these)} messages.")
        done.append((work, seconds, sum(stage.look().since(before).values())))
    return done


def _places(broker: Hookstation) -> Mapping[Way, _Rest | _Boto]:
    url, channel, key = broker.address(), broker.channel, broker.key_of("sqs", "--sigv4")
    lines = dict(re.findall(r"^(AWS_\w+)=(.*)$", key, re.MULTILINE))
    return {
        "rest": _Rest(url, key.split()[0], channel, "sqs"),
        "boto3": _Boto(url, channel, lines["AWS_ACCESS_KEY_ID"], lines["AWS_SECRET_ACCESS_KEY"]),
    }


def _values(
    measured: Mapping[tuple[Work, int, Way], _Measured],
) -> Iterable[tuple[str, float]]:
    for work in WORKS:
        for together in TOGETHER:
            rest, boto = measured[work, together, "rest"], measured[work, together, "boto3"]
            key = f"sqs.{work}{together}"
            pairs = zip(boto.seconds, rest.seconds, strict=True)
            yield key, median(theirs / ours for theirs, ours in pairs)
            for way, one in (("boto3", boto), ("rest", rest)):
                yield f"{key}_{way}", 1 / median(one.seconds)
                yield f"{key}_{way}_cpu", median(one.cpu_ms)


def _figures(work: Work, together: int) -> Iterable[Figure]:
    what = "sent" if work == "send" else "received and deleted"
    many = "ten in a request" if together == TOGETHER[0] else "one in a request"
    key = f"sqs.{work}{together}"
    yield Figure(
        key,
        f"SQS: messages/s {what}, {many}: the REST API's, divided by those through boto3",
        "x",
        must=2.0,
        aim=1.5,
        digits=2,
    )
    for way, name in (("boto3", "through boto3"), ("rest", "through the REST API")):
        yield Figure(f"{key}_{way}", f"- {name}", "/s", digits=0)
        yield Figure(f"{key}_{way}_cpu", "- - CPU of broker and database", "ms", digits=3)


ROWS = (
    Row(
        "sqs",
        tuple(
            figure for work in WORKS for together in TOGETHER for figure in _figures(work, together)
        ),
        measure,
        in_quick=False,
        ours_alone=True,
    ),
)
