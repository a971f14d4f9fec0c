"""Workers of the client over a gRPC stream: where they differ from those over REST."""

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

from tests.e2e.clients.test_working import PATIENCE_S, run_until, running, states
from tests.support import ports
from tests.support.broker import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("hooks", ["stream"], indirect=True)]

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


def run_blocking(hooks: Hookstation, channel: str, handled: list[bytes]) -> None:
    run_until(
        Worker(hooks, channel, "all", lambda one: handled.append(one.body), concurrency=16),
        lambda: len(handled) == 200,
        "the worker has not handled everything",
    )


def run_in_asyncio(hooks: Hookstation, channel: str, handled: list[bytes]) -> None:
    async def work() -> None:
        async with AsyncHookstation(hooks.url, key=hooks.key, grpc=hooks.grpc) as client:

            async def handle(delivery: Any) -> None:
                handled.append(delivery.body)
                if len(handled) == 200:
                    worker.stop()

            worker = AsyncWorker(client, channel, "all", handle, concurrency=16)
            await asyncio.wait_for(worker.run(), PATIENCE_S)

    asyncio.run(work())


@pytest.mark.parametrize("run", [run_blocking, run_in_asyncio])
def test_a_worker_does_nothing_over_rest(
    hooks: Hookstation, channel: str, run: Callable[[Hookstation, str, list[bytes]], None]
) -> None:
    hooks.register(channel, "all")
    hooks.publish_batch(channel, [Outgoing(str(n)) for n in range(200)])
    handled: list[bytes] = []

    with refused_rest() as used:
        run(hooks, channel, handled)

    assert used == []
    assert sorted(handled) == sorted(b"%d" % n for n in range(200))
    assert states(hooks, channel) == ["Delivered"] * 200


def test_a_worker_holds_no_more_messages_than_it_handles(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "all")
    hooks.publish_batch(channel, [Outgoing(str(n)) for n in range(20)])
    may_end, begun = threading.Event(), threading.Semaphore(0)

    def handle(delivery: Delivery) -> None:
        begun.release()
        assert may_end.wait(PATIENCE_S)

    with running(Worker(hooks, channel, "all", handle, concurrency=3)):
        for _ in range(3):
            assert begun.acquire(timeout=PATIENCE_S)
        assert not begun.acquire(timeout=1.0)
        # Another worker gets all the others.
        found = hooks.receive_batch(channel, "all", max=100)
        may_end.set()
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
