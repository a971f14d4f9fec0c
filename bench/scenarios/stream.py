"""Compare one gRPC stream with one receiver of the REST API, doing the same work in turns."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, Literal, NamedTuple

import urllib3

from bench.adapters import BenchError
from bench.broker import Hookstation, free_port
from bench.databases import ROOT
from bench.load import SPAWN
from bench.machine import cpu_times
from bench.scenarios.pull import fill
from bench.stage import Figure, Scenario, Stage, Values

Way = Literal["stream", "rest10", "rest1"]
WAYS: tuple[Way, ...] = ("stream", "rest10", "rest1")
NAMES: dict[Way, str] = {
    "stream": "one gRPC stream",
    "rest10": "one REST receiver, ten at a time",
    "rest1": "one REST receiver, one at a time",
}
SHARE: dict[Way, int] = {"stream": 1, "rest10": 2, "rest1": 8}
"""The slower ways take a part of the messages, so that a round does not take minutes."""
CREDITS = 1000
ROUNDS = 3
LEASE_S = 120
TIMEOUT_S = 120.0
POLL_S = 0.05
CONSUMER = "stream"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a receiver gets messages, and its key."""

    url: str
    grpc: str
    key: str
    channel: str


def serve(place: _Place, way: Way, pipe: Connection) -> None:
    """Run a process that receives and acknowledges as many messages as it is told, repeatedly."""
    take = _by_stream(place) if way == "stream" else _by_rest(place, 10 if way == "rest10" else 1)
    next(take)
    while (count := pipe.recv()) is not None:
        try:
            pipe.send(take.send(count))
        except Exception as error:  # any exception fails the scenario
            pipe.send(f"{type(error).__name__}: {error}")


def _by_stream(place: _Place) -> Generator[list[str], int]:
    """Receive the count that is sent over one stream; yield the acknowledged message ids."""
    sys.path.insert(0, str(ROOT / "clients/python/src"))
    from hookstation_client.grpc.stream import (  # noqa: PLC0415 - it is found only now
        Stream,
        open_channel,
    )

    channel = open_channel(place.grpc)
    subscription = {"channel": place.channel, "consumer": CONSUMER, "lease_s": LEASE_S}
    stream = Stream(channel, place.key, subscription, 0)
    responses = stream.responses()
    ids: list[str] = []
    while True:
        count = yield ids
        ids, granted = [], min(count, CREDITS)
        stream.grant(granted)
        for deliveries in responses:
            ids += [one.id for one in deliveries]
            stream.settle("ack", *(one.lease for one in deliveries))
            more = min(len(deliveries), count - granted)
            granted += more
            if more:
                stream.grant(more)
            if len(ids) == count:
                break
        end = time.monotonic() + TIMEOUT_S
        while stream.unsettled and time.monotonic() < end:
            next(responses)


def _by_rest(place: _Place, together: int) -> Generator[list[str], int]:
    """Do the same over one persistent connection of the REST API."""
    headers = {"Authorization": f"Bearer {place.key}", "Content-Type": "application/json"}
    http = urllib3.PoolManager(headers=headers, timeout=TIMEOUT_S, retries=False)
    base = f"{place.url}/api/v1"
    path = f"{base}/channels/{place.channel}/consumers/{CONSUMER}/receive"

    def post(url: str, asked: Any) -> Any:
        response = http.request("POST", url, body=json.dumps(asked).encode())
        if response.status != 200:
            raise BenchError(f"{url}: {response.status} {response.data[:200]!r}")
        return response.json()

    ids: list[str] = []
    while True:
        count = yield ids
        ids = []
        end = time.monotonic() + TIMEOUT_S
        while len(ids) < count and time.monotonic() < end:
            asked = {"max": min(together, count - len(ids)), "lease_s": LEASE_S, "wait_s": 1}
            messages = post(path, asked)["messages"]
            if messages:
                leases = [one["lease"] for one in messages]
                done = set(post(f"{base}/leases/ack", {"leases": leases})["done"])
                ids += [one["id"] for one in messages if one["lease"] in done]


@dataclass(slots=True)
class _Measured:
    rates: list[float] = field(default_factory=list)
    """Messages per second."""
    cpu_ms: list[float] = field(default_factory=list)
    """CPU milliseconds per message of broker and database."""


def measure(stage: Stage) -> Values:
    """Let one receiver take waiting messages, over a stream and over the REST API, in turns."""
    broker = stage.hookstation
    stage.consumers()
    broker.register({CONSUMER: {"mode": "pull"}})
    key = broker.admin_key("stream").split()[0]
    measured: dict[Way, _Measured] = {way: _Measured() for way in WAYS}
    with _serving(broker) as (address, pid):
        place = _Place(broker.address, f"grpc://{address}", key, broker.channel)
        pipes = dict(_processes(place))
        try:
            for number in range(ROUNDS):
                for way in sorted(WAYS, reverse=bool(number % 2)):
                    took = _round(stage, pipes[way], way, pid)
                    measured[way].rates.append(took.rate)
                    measured[way].cpu_ms.append(took.cpu_ms)
                stage.progress(number + 1, ROUNDS)
        finally:
            for pipe in pipes.values():
                pipe.send(None)
    return dict(_values(measured))


class _Took(NamedTuple):
    """One round of one way."""

    rate: float
    cpu_ms: float


def _round(stage: Stage, pipe: Connection, way: Way, server: int) -> _Took:
    """Let a receiver take messages; ``server`` is the process id of the gRPC server."""
    count = max(20, stage.sizes.messages // SHARE[way])
    fill(stage, count)
    before, grpc_before = stage.cpu_times(), cpu_times({"grpc": [server]})
    began = time.monotonic()
    pipe.send(count)
    if not pipe.poll(TIMEOUT_S):
        raise BenchError(f"{NAMES[way]}: no result after {TIMEOUT_S:g} s.")
    ids = pipe.recv()
    seconds = time.monotonic() - began
    if isinstance(ids, str):
        raise BenchError(f"{NAMES[way]}: {ids}")
    if len(ids) != count or len(set(ids)) != count:
        raise BenchError(f"{NAMES[way]}: {len(set(ids))} of {count} messages.")
    used = sum(stage.cpu_times().since(before).values())
    used += sum(cpu_times({"grpc": [server]}).since(grpc_before).values())
    return _Took(count / seconds, used / count * 1e3)


def _processes(place: _Place) -> Iterator[tuple[Way, Connection]]:
    for way in WAYS:
        ours, theirs = SPAWN.Pipe()
        SPAWN.Process(target=serve, args=(place, way, theirs), daemon=True).start()
        theirs.close()
        yield way, ours


@contextmanager
def _serving(broker: Hookstation) -> Iterator[tuple[str, int]]:
    """Run `manage.py grpc` beside the broker; yields its address and process id."""
    address = f"127.0.0.1:{free_port()}"
    command: Sequence[str] = (sys.executable, "manage.py", "grpc", "--bind", address)
    with (broker.folder / "grpc.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=broker.environment, stdout=log, stderr=log
        )
    try:
        _wait_for(address, process)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def _wait_for(address: str, process: "subprocess.Popen[bytes]") -> None:
    host, _, port = address.partition(":")
    end = time.monotonic() + TIMEOUT_S
    while True:
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise BenchError("The gRPC server did not start.") from None
            time.sleep(POLL_S)


def _values(measured: dict[Way, _Measured]) -> Iterator[tuple[str, float]]:
    stream = measured["stream"].rates
    for way in WAYS:
        yield way, median(measured[way].rates)
        yield f"{way}_cpu", median(measured[way].cpu_ms)
        if way != "stream":
            pairs = zip(stream, measured[way].rates, strict=True)
            yield f"ratio_{way}", median(ours / theirs for ours, theirs in pairs)


def _figures(way: Way) -> Iterator[Figure]:
    if way == "stream":
        title = f"pull: received and acknowledged messages/s, {NAMES[way]}"
        yield Figure("stream", title, "/s", must=3_000, aim=8_000, better="more")
    else:
        yield Figure(f"ratio_{way}", f"- divided by {NAMES[way]}", "x", digits=1)
        yield Figure(way, f"- {NAMES[way]}", "/s")
    yield Figure(f"{way}_cpu", "- - CPU of broker and database", "ms", digits=3)


STREAM = Scenario(
    "stream",
    measure,
    [figure for way in WAYS for figure in _figures(way)],
    in_quick=False,
    hookstation_only=True,
)
