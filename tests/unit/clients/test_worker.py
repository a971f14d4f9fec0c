"""Workers whose broker is unavailable when they start."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hookstation_client import AsyncHookstation, AsyncWorker, Hookstation, Worker

from tests.support.receiver import Receiver, Reply
from tests.unit.clients.test_calls import MESSAGE

RECEIVE = "/api/v1/channels/orders/consumers/billing/receive"
OPTIONS: dict[str, Any] = {"concurrency": 1, "worker_id": "packer-1", "resume": True}


def work_blocking(url: str) -> None:
    with Hookstation(url, key="hsk_x", retries=0) as client:
        worker = Worker(client, "orders", "billing", lambda delivery: worker.stop(), **OPTIONS)
        worker.run()


def work_awaiting(url: str) -> None:
    async def handle(delivery: Any) -> None:
        workers[0].stop()

    async def work() -> None:
        async with AsyncHookstation(url, key="hsk_x", retries=0) as client:
            workers.append(AsyncWorker(client, "orders", "billing", handle, **OPTIONS))
            await workers[0].run()

    workers: list[AsyncWorker] = []
    asyncio.run(work())


@pytest.mark.parametrize("work", [work_blocking, work_awaiting])
def test_a_worker_continues_when_the_broker_is_available_again(
    receiver: Receiver, work: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookstation_client.worker.AFTER_FAILURE_S", 0.0)
    found = [b'{"messages": []}', json.dumps({"messages": [MESSAGE]}).encode()]
    receiver.script(RECEIVE, [Reply(503), *(Reply(200, body) for body in found)])
    receiver.script("/api/v1/leases/ack", [Reply(200, b'{"done": ["a"], "failed": []}')])

    work(receiver.url("/"))

    asked = [json.loads(request.body).get("resume") for request in receiver.requests(RECEIVE)]
    assert asked == [True, True, None]
