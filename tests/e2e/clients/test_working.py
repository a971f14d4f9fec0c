"""Workers, buffers and reconciliation of the client against a real broker."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hookstation_client import (
    AsyncHookstation,
    AsyncWorker,
    Delivery,
    Hookstation,
    Outgoing,
    Refused,
    Reject,
    Retry,
    Worker,
)

from tests.support.broker import ROOT, wait_until
from tests.support.receiver import Receiver

pytestmark = pytest.mark.e2e
PATIENCE_S = 120.0


over_both = pytest.mark.parametrize("hooks", ["rest", "stream"], indirect=True)
"""A worker over a stream does what a worker over REST does."""


def states(hooks: Hookstation, channel: str, consumer: str = "all") -> list[str]:
    return sorted(d["state"] for d in hooks.deliveries(channel, consumer))


@contextmanager
def running(worker: Worker) -> Iterator[None]:
    """Run the worker in a thread inside the block."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def run_until(worker: Worker, done: Callable[[], bool], otherwise: str) -> None:
    """Run the worker in a thread until the condition holds."""
    with running(worker):
        wait_until(done, PATIENCE_S, otherwise)


@over_both
def test_worker_acknowledges_retries_and_rejects(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "all", max_attempts=2, retry=[1])
    hooks.publish_batch(channel, [Outgoing(text) for text in ("good", "later", "bad", "no")])
    calls: list[tuple[bytes, int]] = []

    def handle(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.attempt))
        if delivery.body == b"bad":
            raise RuntimeError("closed")
        if delivery.body == b"no":
            raise Reject("no such room")
        if delivery.body == b"later" and delivery.attempt == 1:
            raise Retry(after=0)

    run_until(
        Worker(hooks, channel, "all", handle, wait=1),
        lambda: states(hooks, channel) == ["Dead", "Dead", "Delivered", "Delivered"],
        "the worker has not settled everything",
    )

    assert sorted(calls) == [
        (b"bad", 1), (b"bad", 2), (b"good", 1), (b"later", 1), (b"later", 2), (b"no", 1),
    ]  # fmt: skip
    dead = [hooks.delivery(item["id"]) for item in hooks.dead_letters(channel, "all")]
    assert {(d["reason"], d["attempts"][0]["error"]) for d in dead} == {
        ("exhausted", "RuntimeError: closed"),
        ("permanent_failure", "no such room"),
    }


@over_both
def test_a_refused_settlement_does_not_end_the_worker(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "all")
    hooks.publish_batch(channel, [Outgoing("bad"), Outgoing("good")])
    handled: list[bytes] = []

    def handle(delivery: Delivery) -> None:
        handled.append(delivery.body)
        if delivery.body == b"bad":
            raise Retry(after=1e9)  # longer than the broker allows

    run_until(
        Worker(hooks, channel, "all", handle, concurrency=1, wait=1),
        lambda: b"good" in handled and "Delivered" in states(hooks, channel),
        "the worker has ended",
    )


@over_both
def test_worker_extends_leases_and_runs_several_at_once(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "all")
    hooks.publish_batch(channel, [Outgoing(str(n)) for n in range(4)])
    together = threading.Barrier(5)
    may_end = threading.Event()

    def handle(delivery: Delivery) -> None:
        together.wait(PATIENCE_S)
        assert may_end.wait(PATIENCE_S)

    with running(Worker(hooks, channel, "all", handle, concurrency=4, lease=2, wait=1)):
        together.wait(PATIENCE_S)
        # The worker extends its leases: another receiver waits longer than a lease, for nothing.
        found = hooks.receive_batch(channel, "all", wait=4)
        may_end.set()

    assert found == []
    assert states(hooks, channel) == ["Delivered"] * 4
    assert {d["attempt_count"] for d in hooks.deliveries(channel, "all")} == {1}


@over_both
def test_asyncio_worker_runs_tasks(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "all", retry=[1])
    hooks.publish_batch(channel, [Outgoing(str(n)) for n in range(4)])
    calls: list[bytes] = []

    async def work() -> None:
        async with AsyncHookstation(
            hooks.url, key=hooks.key, timeout=60, grpc=hooks.grpc
        ) as client:
            all_there = asyncio.Event()

            async def handle(delivery: Any) -> None:
                calls.append(delivery.body)
                if len(calls) == 4:
                    all_there.set()
                await asyncio.wait_for(all_there.wait(), PATIENCE_S)
                if delivery.body == b"0" and delivery.attempt == 1:
                    raise Retry(after=0)
                if len(calls) == 5:
                    worker.stop()

            worker = AsyncWorker(client, channel, "all", handle, concurrency=4, wait=1)
            await asyncio.wait_for(worker.run(), PATIENCE_S)

    asyncio.run(work())

    assert sorted(calls) == [b"0", b"0", b"1", b"2", b"3"]
    assert states(hooks, channel) == ["Delivered"] * 4


WORKER = """
import os, signal, sys
from hookstation_client import Hookstation, Worker

def handle(delivery):
    print("begun", flush=True)
    if sys.argv[2] == "itself":
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        sys.stdin.readline()
    print("done", flush=True)

Worker(Hookstation(timeout=60), sys.argv[1], "all", handle, concurrency=1, lease=5, wait=1).run()
print("ended", flush=True)
"""


@contextmanager
def client_process(
    environment: Mapping[str, str], code: str, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    """Run another client process against the same broker; kill it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "clients/python/src"),
            **environment,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@over_both
@pytest.mark.parametrize("sender", ["another", "itself"])
def test_a_stopped_worker_finishes_running_handlers_and_receives_nothing(
    hooks: Hookstation, environment: Mapping[str, str], channel: str, sender: str
) -> None:
    """Not even if the handler ends before the main thread has handled the signal."""
    hooks.register(channel, "all")
    hooks.publish_batch(channel, [Outgoing("one"), Outgoing("two")])

    with client_process(environment, WORKER, channel, sender) as worker:
        assert line_of(worker) == "begun"
        if sender == "another":
            worker.send_signal(signal.SIGTERM)
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        said = [line_of(worker), line_of(worker)]
        ended = worker.wait(PATIENCE_S)

    assert (ended, said) == (0, ["done", "ended"])
    assert states(hooks, channel) == ["Delivered", "Queued"]


BUFFER = """
import sys
from hookstation_client import Hookstation

hooks = Hookstation(sys.argv[3], timeout=60, retries=0)
buffer = hooks.buffer(sys.argv[1], spool=sys.argv[2])
n = 0
while True:
    buffer.publish({"n": n}, ordering_key="k")
    n += 1
    print(n, flush=True)
"""


def test_killed_process_leaves_its_messages_in_the_spool(
    hooks: Hookstation, environment: Mapping[str, str], channel: str, tmp_path: Path
) -> None:
    """Kill it while it sends, and while the broker is unreachable: each message is stored once."""
    spool = tmp_path / "spool.db"
    promised = 0
    for url, least in ((hooks.url, 300), ("http://127.0.0.1:9", 50)):
        with client_process(environment, BUFFER, channel, str(spool), url) as writer:
            said = 0
            while said < least:
                said = int(line_of(writer))
            writer.kill()
            assert writer.stdout is not None
            rest = writer.stdout.read().split()
        promised += int(rest[-1]) if rest and rest[-1].isdigit() else said

    with hooks.buffer(channel, spool=spool) as buffer:
        assert buffer.flush(PATIENCE_S)

    messages = list(hooks.messages(channel))
    # The kill may have cut off the line that confirms a stored message.
    assert promised <= len(messages) <= promised + 2
    with sqlite3.connect(spool) as database:
        assert database.execute("SELECT count(*) FROM waiting").fetchone() == (0,)


def test_buffer_keeps_the_order_and_lists_refused_messages(
    hooks: Hookstation, channel: str
) -> None:
    hooks.register(channel, "all", ordering=True)
    refused: list[Refused] = []

    with hooks.buffer(channel, on_refused=refused.append) as buffer:
        for n in range(20):
            buffer.publish(str(n), ordering_key="k")
        buffer.publish("x", priority=12)
        assert buffer.flush(PATIENCE_S)
        kept = buffer.refused()

    received: list[int] = []
    while len(received) < 20:
        for message in hooks.receive_batch(channel, "all", wait=20):
            received.append(int(message.body))
            message.ack()
    assert received == list(range(20))
    assert refused == kept
    assert "priority" in refused[0].error


def test_asyncio_buffer_sends_in_the_background(hooks: Hookstation, channel: str) -> None:
    async def publish() -> bool:
        async with (
            AsyncHookstation(hooks.url, key=hooks.key, timeout=60) as client,
            client.buffer(channel) as buffer,
        ):
            await buffer.publish("x", id="one")
            return await buffer.flush(PATIENCE_S)

    assert asyncio.run(publish())
    assert len(list(hooks.messages(channel))) == 1


def test_reconcile_replays_messages_that_the_consumer_has_not_seen(
    hooks: Hookstation, channel: str, receiver: Receiver
) -> None:
    hooks.register(channel, "shop", url=receiver.url("/shop"))
    results = hooks.publish_batch(channel, [Outgoing(str(n)) for n in range(3)])
    ids = [result.message.id for result in results if result.message]
    wait_until(
        lambda: states(hooks, channel, "shop") == ["Delivered"] * 3, PATIENCE_S, "not delivered"
    )

    def compared() -> int:
        return hooks.reconcile(channel, "shop", seen=lambda id: True).checked

    # The broker reports deliveries after two seconds.
    wait_until(lambda: compared() == 3, PATIENCE_S, "the broker has not told")
    clean = hooks.reconcile(channel, "shop", seen=lambda id: True)
    found = hooks.reconcile(channel, "shop", seen=lambda id: id != ids[1], replay=True)

    assert (clean.is_clean, clean.last) == (True, ids[2])
    assert [item["message_id"] for item in found.missing] == [ids[1]]
    assert len(found.replays) == 1
    wait_until(lambda: len(receiver.requests("/shop")) == 4, PATIENCE_S, "it was not sent again")
    assert receiver.requests("/shop")[-1].header("webhook-id") == ids[1]
    assert hooks.reconcile(channel, "shop", seen=lambda id: True, after=clean.last).checked == 0
