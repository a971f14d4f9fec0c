"""The Python client against a real broker, blocking and with asyncio."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from hookstation_client import (
    AsyncHookstation,
    BadRequest,
    Conflict,
    Hookstation,
    LeaseLost,
    NotFound,
    Outgoing,
    Unauthorized,
)

pytestmark = pytest.mark.e2e


def test_message_is_received_as_it_was_published(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "billing", events=["order.*"])
    sent = hooks.publish(
        channel,
        {"id": 7, "name": "Zoë"},
        event_type="order.created",
        id="order-7",
        ordering_key="room-7",
        priority=5,
        headers={"X-Town": "Malmö"},
    )
    again = hooks.publish(
        channel, {"id": 7, "name": "Zoë"}, event_type="order.created", id="order-7"
    )

    (received,) = hooks.receive_batch(channel, "billing", wait=20)

    assert (again.id, again.is_duplicate, sent.is_duplicate) == (sent.id, True, False)
    assert received.id == sent.id
    assert received.json() == {"id": 7, "name": "Zoë"}
    assert received.content_type == "application/json"
    assert (received.event_type, received.ordering_key) == ("order.created", "room-7")
    assert (received.priority, received.attempt) == (5, 1)
    assert received.headers == {"X-Town": "Malmö"}
    received.ack()
    received.ack()


def test_bodies_keep_their_bytes(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "all")
    bodies = [b"\x00\xff\xfe", "plain \U0001f40d", {"a": [1, None]}, b""]
    hooks.publish_batch(channel, [Outgoing(body) for body in bodies[:2]])
    for body in bodies[2:]:
        hooks.publish(channel, body)

    received = {m.body: m.content_type for m in hooks.receive(channel, "all", wait=0)}

    assert received == {
        b"\x00\xff\xfe": "application/octet-stream",
        "plain \U0001f40d".encode(): "text/plain; charset=utf-8",
        b'{"a":[1,null]}': "application/json",
        b"": "application/octet-stream",
    }


def test_bodies_too_large_for_one_response_are_fetched(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "all")
    bodies = [bytes([65 + n]) * 1_000_000 for n in range(10)]
    for body in bodies:
        hooks.publish(channel, body)

    received = hooks.receive_batch(channel, "all", max=10, wait=20)

    assert sorted(m.body for m in received) == bodies
    assert any(m.body_url for m in received)


def test_receiver_can_reject_release_and_extend(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "all")
    hooks.publish(channel, "x")

    (first,) = hooks.receive_batch(channel, "all", wait=20)
    first.extend(60)
    first.nack(delay=0, error="not now")
    (second,) = hooks.receive_batch(channel, "all", wait=20)
    second.release()
    (third,) = hooks.receive_batch(channel, "all", wait=20)
    third.ack()

    assert [first.attempt, second.attempt, third.attempt] == [1, 2, 3]
    with pytest.raises(LeaseLost) as lost:
        first.ack()
    assert lost.value.code == "expired"


def test_batch_result_has_the_errors_of_refused_messages(hooks: Hookstation, channel: str) -> None:
    good, bad = hooks.publish_batch(channel, [Outgoing("a"), Outgoing("b", priority=12)])

    assert good.message is not None
    assert good.error is None
    assert bad.message is None
    assert isinstance(bad.error, BadRequest)
    assert (bad.error.code, list(bad.error.fields)) == ("invalid_fields", ["priority"])


def test_errors_are_classes_with_the_code(hooks: Hookstation, channel: str) -> None:
    with pytest.raises(NotFound) as missing:
        hooks.publish("nowhere", "x")
    with pytest.raises(BadRequest) as wrong:
        hooks.create_channel(channel, colour="red", retention_days=0)
    with Hookstation(hooks.url, key="hsk_wrong_key") as stranger, pytest.raises(Unauthorized):
        stranger.channel(channel)
    hooks.publish(channel, "x", id="one")
    with pytest.raises(Conflict) as conflict:
        hooks.publish(channel, "y", id="one")

    assert (missing.value.code, missing.value.status) == ("unknown_channel", 404)
    assert set(wrong.value.fields) == {"colour", "retention_days"}
    assert conflict.value.code == "idempotency_conflict"


def test_lists_are_iterators_over_all_pages(hooks: Hookstation, channel: str) -> None:
    hooks.publish_batch(channel, [Outgoing(str(n)) for n in range(120)])

    listed = list(hooks.messages(channel))

    assert len({m["id"] for m in listed}) == 120


def test_scheduled_message_is_listed_moved_and_cancelled(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "all")
    day = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    one = hooks.publish(channel, "one", deliver_at=day)
    two = hooks.publish(channel, "two", deliver_in=3 * 86_400)

    hooks.move(one.id, deliver_at=day + timedelta(days=5), priority=9)

    assert one.due_at == day
    assert [m["id"] for m in hooks.timeline(channel)] == [two.id, one.id]
    assert hooks.timeline_histogram(channel, width=86_400)["count"] == 2
    hooks.cancel(one.id, reason="a mistake")
    (gone,) = hooks.cancel_many([two.id])
    assert gone.error is None
    assert list(hooks.timeline(channel)) == []
    (refused,) = hooks.move_many([{"id": two.id, "deliver_at": day}])
    assert isinstance(refused.error, Conflict)


def test_schedule_lives_from_put_to_delete(hooks: Hookstation, channel: str) -> None:
    schedules = hooks.schedules(channel)

    made = schedules.put("daily", {"a": 1}, cron="0 9 * * 1-5", timezone="Europe/Paris")
    schedules.pause("daily")
    ran = schedules.run("daily")
    schedules.resume("daily")
    changed = schedules.update("daily", every=3600)

    assert made["body"] == '{"a":1}'
    assert hooks.body(ran.id) == b'{"a":1}'
    assert (changed["cron"], changed["every_ms"]) == (None, 3_600_000)
    assert [s["name"] for s in schedules.list(state="active")] == ["daily"]
    schedules.delete("daily")
    with pytest.raises(NotFound):
        schedules.get("daily")


def test_same_names_work_with_asyncio(hooks: Hookstation, channel: str) -> None:
    async def talk() -> list[object]:
        async with AsyncHookstation(hooks.url, key=hooks.key, timeout=60) as client:
            await client.register(channel, "all")
            sent = await client.publish(channel, {"n": 1}, id="one")
            await client.publish_batch(channel, [Outgoing({"n": n}) for n in range(2, 5)])
            listed = [m["id"] async for m in client.messages(channel)]
            received = []
            async for message in client.receive(channel, "all", wait=0):
                received.append(message.json()["n"])
                await message.ack()
            await client.schedules(channel).put("daily", "x", cron="0 9 * * *")
            names = [s["name"] async for s in client.schedules(channel).list()]
            return [sent.id in listed, len(listed), sorted(received), names]

    assert asyncio.run(talk()) == [True, 4, [1, 2, 3, 4], ["daily"]]


class LosesResponses(httpx.BaseTransport):
    """The real transport, which loses its first responses."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.sent: list[httpx.Request] = []
        self._real = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._real.handle_request(request)
        self.sent.append(request)
        if len(self.sent) <= self.losses:
            response.read()
            raise httpx.ReadError("the connection broke", request=request)
        return response

    def close(self) -> None:
        self._real.close()


@pytest.fixture
def losing(hooks: Hookstation) -> Iterator[tuple[Hookstation, LosesResponses]]:
    transport = LosesResponses(2)
    with httpx.Client(transport=transport) as http:
        yield Hookstation(hooks.url, key=hooks.key, timeout=60, http=http), transport


def test_publish_whose_response_is_lost_stores_one_message(
    hooks: Hookstation, channel: str, losing: tuple[Hookstation, LosesResponses]
) -> None:
    client, transport = losing

    sent = client.publish(channel, "x")

    assert len({request.headers["Idempotency-Key"] for request in transport.sent}) == 1
    assert len(transport.sent) == 3
    assert sent.is_duplicate
    assert [m["id"] for m in hooks.messages(channel)] == [sent.id]
