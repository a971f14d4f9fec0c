"""gRPC streams whose client reads nothing, waits or goes."""

import asyncio
from collections import Counter as Tally
from collections.abc import AsyncIterator

import pytest

from channels_app.models import ApiKey, Consumer
from delivery.grpc import publish as publishing
from delivery.grpc import receive
from delivery.grpc.hookstation_pb2 import PublishBatch, PublishRequest, Settlement
from delivery.models import Attempt, Delivery
from delivery.pull import long_polling
from delivery.pull.long_polling import long_polls
from tests.support.doors import receive_over_grpc
from tests.support.factories import ApiKeyFactory
from tests.support.grpc_calls import ReceiveCall, TestThread, meta_of
from tests.support.pulling import Worker, waiting
from tests.support.pumping import make_channel, publish
from tests.support.waiting import until

pytestmark = pytest.mark.django_db


@pytest.fixture
def key() -> ApiKey:
    return ApiKeyFactory.create(admin=True)


@pytest.fixture
def here() -> TestThread:
    return TestThread()


def states(consumer: Consumer) -> Tally[str]:
    return Tally(Delivery.objects.filter(consumer=consumer).values_list("state", flat=True))


def test_a_client_that_does_not_read_holds_one_claim(here: TestThread, key: ApiKey) -> None:
    consumer = waiting(*[b"x"] * 50)

    async def slow() -> None:
        call = ReceiveCall(here, key, consumer, 50)
        await here.at_rest()
        assert await here.run(states, consumer) == {"in_flight": receive.FIRST_BATCH, "queued": 30}
        call.reads.set()
        assert len(await call.messages(50)) == 50
        await call.end()

    here.work_off(slow())
    assert states(consumer) == {"in_flight": 50}


def test_messages_that_were_not_sent_come_back_at_once(
    here: TestThread, key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was being sent stays leased, because the client may have it."""
    monkeypatch.setattr(receive, "CHUNK_BYTES", 2)
    consumer = waiting(*[b"x"] * 6)

    async def gone() -> None:
        call = ReceiveCall(here, key, consumer, 6)
        await here.at_rest()
        assert await here.run(states, consumer) == {"in_flight": 6}
        await call.end()

    here.work_off(gone())
    assert states(consumer) == {"in_flight": 2, "queued": 4}
    assert {one["attempt"] for one in Worker(consumer).receive()} == {1}
    assert not Attempt.objects.exists()


def test_a_large_body_has_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "MAX_INLINE_BYTES", 1)
    fits, other = receive_over_grpc(Worker(waiting(b"x", b"xy")))
    assert (fits["body"], "body" in other) == ("x", False)
    assert other["body_url"].endswith(f"/messages/{other['id']}/body")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("auto_ack", [False, True])
def test_a_waiting_stream_is_woken(
    here: TestThread, key: ApiKey, monkeypatch: pytest.MonkeyPatch, auto_ack: bool
) -> None:
    """Neither a scan nor the end of a wait ends it: both are an hour away."""
    monkeypatch.setattr(long_polling, "MIN_SCAN_INTERVAL_S", 3600.0)
    monkeypatch.setattr(long_polls, "_scanned_at", float("inf"))
    monkeypatch.setattr(receive, "WAIT_S", 3600.0)
    consumer = waiting(channel=make_channel())

    async def woken() -> None:
        call = ReceiveCall(here, key, consumer, 2, auto_ack=auto_ack)
        call.reads.set()
        for number in (1, 2):
            await asyncio.to_thread(until, long_polls.waiting, "it waits")
            await here.run(publish, consumer.channel, b"x")
            assert len(await asyncio.wait_for(call.messages(number), 60)) == number
        assert [not one.lease for one in call.got] == [auto_ack] * 2
        await call.end()

    here.work_off(woken())
    assert states(consumer) == {"delivered" if auto_ack else "in_flight": 2}


def test_settlements_of_a_client_that_is_gone_are_stored(here: TestThread, key: ApiKey) -> None:
    consumer = waiting(*[b"x"] * 3)

    async def gone() -> None:
        call = ReceiveCall(here, key, consumer, 3)
        call.reads.set()
        leases = [one.lease for one in await call.messages(3)]
        call.reads.clear()  # so that the second settlement waits until the first result is written
        for id_, action in enumerate((Settlement.ACK, Settlement.RELEASE, Settlement.ACK), 1):
            call.send(settlements=[Settlement(id=id_, action=action, leases=leases[id_ - 1 : id_])])
        await here.at_rest()
        assert await here.run(states, consumer) == {"delivered": 1, "in_flight": 2}
        await call.end()

    here.work_off(gone())
    assert states(consumer) == {"delivered": 2, "queued": 1}


def test_a_producer_that_reads_no_results_is_held_back(
    here: TestThread, key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "MAX_QUEUED_BYTES", 10_000)
    channel, sizes = make_channel(), list[int]()

    async def endless() -> AsyncIterator[bytes]:
        request = PublishRequest(channel=channel.slug, body=b"x" * 1000)
        content = PublishBatch(messages=[request]).SerializeToString()
        while True:
            sizes.append(len(content))
            yield content

    async def never(response: bytes) -> None:
        await asyncio.Future()

    async def unread() -> None:
        stream = publishing.PublishStream(meta_of(key), never, here)
        serving = asyncio.create_task(stream.serve(endless()))
        await here.at_rest()
        assert 10_000 < sum(sizes) <= 10_000 + sizes[0]
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    here.work_off(unread())
