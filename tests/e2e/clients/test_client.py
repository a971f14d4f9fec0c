"""The Python client against a real broker, blocking and with asyncio.

Here is what the conformance scenarios, which play every client, do not say of it.
"""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hookstation_client import (
    AsyncHookstation,
    BadRequest,
    Conflict,
    Hookstation,
    LeaseLost,
    NotFound,
    Outgoing,
)

pytestmark = pytest.mark.e2e


def test_the_error_of_a_batch_item_is_that_of_a_request(hooks: Hookstation, channel: str) -> None:
    _, refused = hooks.publish_batch(channel, [Outgoing("a"), Outgoing("b", priority=12)])

    assert isinstance(refused.error, BadRequest)
    assert list(refused.error.fields) == ["priority"]


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


def test_receiver_can_reject_release_and_extend(hooks: Hookstation, channel: str) -> None:
    hooks.register(channel, "all")
    hooks.publish(channel, {"name": "Zoë"})

    (first,) = hooks.receive_batch(channel, "all", wait=20)
    first.extend(60)
    first.nack(delay=0, error="not now")
    (second,) = hooks.receive_batch(channel, "all", wait=20)
    second.release()
    (third,) = hooks.receive_batch(channel, "all", wait=20)
    third.ack()
    third.ack()

    assert first.json() == {"name": "Zoë"}
    assert [first.attempt, second.attempt, third.attempt] == [1, 2, 3]
    with pytest.raises(LeaseLost) as lost:
        first.ack()
    assert lost.value.code == "expired"


def test_lists_are_iterators_over_all_pages(hooks: Hookstation, channel: str) -> None:
    hooks.publish_batch(channel, [Outgoing(str(n)) for n in range(120)])

    async def listed_in_asyncio() -> list[str]:
        async with AsyncHookstation(hooks.url, key=hooks.key, timeout=60) as client:
            return [m["id"] async for m in client.messages(channel)]

    listed = [m["id"] for m in hooks.messages(channel)]

    assert len(listed) == len(set(listed)) == 120
    assert asyncio.run(listed_in_asyncio()) == listed


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
            await client.publish_batch(channel, [Outgoing({"n": n}) for n in range(1, 5)])
            received = []
            async for message in client.receive(channel, "all", wait=0):
                received.append(message.json()["n"])
                await message.ack()
            await client.schedules(channel).put("daily", "x", cron="0 9 * * *")
            names = [s["name"] async for s in client.schedules(channel).list()]
            return [sorted(received), names]

    assert asyncio.run(talk()) == [[1, 2, 3, 4], ["daily"]]
