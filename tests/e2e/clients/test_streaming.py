"""Workers of the client over a gRPC stream: what they do over REST, and what differs."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hookstation_client import (
    AsyncHookstation,
    AsyncWorker,
    Delivery,
    Hookstation,
    NotFound,
    Outgoing,
    Unauthorized,
    Worker,
)

from tests.e2e.clients import test_working as working
from tests.e2e.clients.test_working import PATIENCE_S, run_until, states
from tests.support import ports
from tests.support.broker import Broker, wait_until

pytestmark = pytest.mark.e2e

# The same tests: a worker over a stream does what a worker over REST does.
test_worker_acknowledges_retries_and_rejects = working.test_worker_acknowledges_retries_and_rejects
test_a_refused_settlement = working.test_a_refused_settlement_does_not_end_the_worker
test_worker_extends_leases = working.test_worker_extends_leases_and_runs_several_at_once
test_asyncio_worker_runs_tasks = working.test_asyncio_worker_runs_tasks
test_stopped_worker = working.test_a_stopped_worker_finishes_running_handlers
test_no_message_after_a_signal = working.test_no_message_is_received_after_a_signal


@pytest.fixture
def hooks(broker: Broker, key: str) -> Iterator[Hookstation]:
    """A client with the address of the broker's gRPC server."""
    url = f"grpc://{broker.environment['HOOKSTATION_GRPC_ADDRESS']}"
    with Hookstation(f"http://127.0.0.1:{broker.port}", key=key, timeout=60, grpc=url) as client:
        yield client


SETTLING = ("receive_batch", "ack", "nack", "release", "extend")


@contextmanager
def refused_rest() -> Iterator[list[str]]:
    """Let no worker receive or settle over REST; yields what one tried.

    A worker may swallow the error.
    """
    used: list[str] = []

    def refuse(name: str) -> Callable[..., Any]:
        def method(self: object, *given: Any, **options: Any) -> Any:
            used.append(f"{name} {given} {options}")
            raise AssertionError(f"over REST: {used[-1]}")

        return method

    with pytest.MonkeyPatch.context() as patched:
        for client in (Hookstation, AsyncHookstation):
            for name in SETTLING:
                patched.setattr(client, name, refuse(name))
        yield used


def test_a_worker_does_nothing_over_rest(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "all")
    hooks.publish_batch(channel, [Outgoing(str(n)) for n in range(200)])
    handled: list[bytes] = []

    def handle(delivery: Delivery) -> None:
        handled.append(delivery.body)

    with refused_rest() as used:
        run_until(
            Worker(hooks, channel, "all", handle, concurrency=16),
            lambda: len(handled) == 200,
            "the worker has not handled everything",
        )
    assert used == []
    assert sorted(handled) == sorted(b"%d" % n for n in range(200))
    assert states(hooks, channel) == ["Delivered"] * 200


def test_an_asyncio_worker_does_nothing_over_rest(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "all")
    hooks.publish_batch(channel, [Outgoing(str(n)) for n in range(200)])
    handled: list[bytes] = []

    async def work() -> None:
        async with AsyncHookstation(hooks.url, key=hooks.key, grpc=hooks.grpc) as client:

            async def handle(delivery: Any) -> None:
                handled.append(delivery.body)
                if len(handled) == 200:
                    worker.stop()

            worker = AsyncWorker(client, channel, "all", handle, concurrency=16)
            await asyncio.wait_for(worker.run(), PATIENCE_S)

    with refused_rest() as used:
        asyncio.run(work())
    assert used == []
    assert len(handled) == 200
    assert states(hooks, channel) == ["Delivered"] * 200


def test_a_worker_holds_no_more_messages_than_it_handles(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "all")
    hooks.publish_batch(channel, [Outgoing(str(n)) for n in range(20)])
    may_end, begun = threading.Event(), threading.Semaphore(0)

    def handle(delivery: Delivery) -> None:
        begun.release()
        assert may_end.wait(PATIENCE_S)

    worker = Worker(hooks, channel, "all", handle, concurrency=3)
    thread = threading.Thread(target=worker.run)
    thread.start()
    for _ in range(3):
        assert begun.acquire(timeout=PATIENCE_S)
    assert not begun.acquire(timeout=1.0)
    # Another worker gets all the others.
    found = hooks.receive_batch(channel, "all", max=100)
    may_end.set()
    worker.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert len(found) == 17
    hooks.release(found)


@pytest.mark.parametrize("grpc", ["nobody-listens", "no-grpcio"])
def test_a_worker_without_a_stream_uses_rest(
    hooks: Hookstation, channel: str, grpc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks.register(channel, "all")
    hooks.publish_batch(channel, [Outgoing(str(n)) for n in range(5)])
    url = hooks.grpc
    if grpc == "no-grpcio":
        monkeypatch.setitem(sys.modules, "hookstation_client.grpc.working", None)
    else:
        url = f"grpc://127.0.0.1:{ports.claim()}"
    handled: list[bytes] = []
    with Hookstation(hooks.url, key=hooks.key, grpc=url, timeout=60) as client:
        run_until(
            Worker(client, channel, "all", lambda one: handled.append(one.body), wait=1),
            lambda: len(handled) == 5,
            "the worker has not handled everything",
        )
    assert states(hooks, channel) == ["Delivered"] * 5


def test_a_worker_raises_what_does_not_pass(hooks: Hookstation, channel: str) -> None:
    with pytest.raises(NotFound) as missing:
        Worker(hooks, channel, "nobody", print).run()
    assert missing.value.code == "unknown_consumer"
    with (
        Hookstation(hooks.url, key="hsk_made-up", grpc=hooks.grpc) as client,
        pytest.raises(Unauthorized),
    ):
        Worker(client, channel, "all", print).run()


def test_a_body_of_a_megabyte_comes_over_the_stream(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "all")
    body = b"x" * 1_000_000
    hooks.publish(channel, body)
    got: list[bytes] = []
    run_until(
        Worker(hooks, channel, "all", lambda one: got.append(one.body)),
        lambda: bool(got),
        "nothing came",
    )
    assert got == [body]
    wait_until(lambda: states(hooks, channel) == ["Delivered"], PATIENCE_S, "not acknowledged")
