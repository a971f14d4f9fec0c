"""Channels that keep all messages in order, or derive ordering keys from bodies."""

import json
import random
from datetime import timedelta

import pytest

from channels_app.core.ordering_key import SHARED
from channels_app.database import clock
from channels_app.models import Channel, Message
from delivery.models import Delivery, OrderingKey
from delivery.queue import fanout
from tests.support import pumping
from tests.support.calling import Api, problem
from tests.support.ordering import check, take
from tests.support.pumping import all_finished, make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"
MANY = 30
"""The requirement says 1,000, which tests the same but takes much longer."""


@pytest.mark.slow("pumps one message after the other")
@pytest.mark.seed("S2-63")
@pytest.mark.usefixtures("brief_pauses")
def test_fifo_sends_the_oldest_first_despite_failures(receiver: Receiver) -> None:
    channel = make_channel(ordering="fifo")
    values = {"ordering": True, "retry": [0.01], "max_attempts": 100}
    make_consumer(channel, receiver.url("/flaky"), **values)
    dice = random.Random(63)
    statuses = dice.choices([200, 500, 503], [8, 1, 1], k=2 * MANY)
    receiver.script("/flaky", [*map(Reply, statuses), Reply(200)])
    publish(channel, *[str(n).encode() for n in range(MANY)], event_type="step")
    with pumping.pumping() as pump:
        pump_until(pump, all_finished, seconds=120)
    heard = [int(request.body) for request in receiver.requests()]
    assert len(heard) > MANY, "something failed"
    assert heard == sorted(heard), "the same again, or the next one"
    taken = [n for n, status in zip(heard, statuses, strict=False) if status == 200]
    assert taken == list(range(MANY))
    assert not OrderingKey.objects.exists()
    check()


def test_an_explicit_key_is_independent_of_the_channel_order() -> None:
    channel = make_channel(ordering="fifo")
    consumer = make_consumer(channel, NOWHERE, ordering=True)
    for key in ("", "A", "", "A"):
        publish(channel, b"x", ordering_key=key)
    fanout.fan_out(100, slot=0)
    keys = Delivery.objects.order_by("message_id").values_list("ordering_key", flat=True)
    assert list(keys) == [SHARED, "A", SHARED, "A"]
    rows = take(consumer, clock.now() + timedelta(seconds=5))
    assert sorted(row.ordering_key for row in rows) == [SHARED, "A"]
    check()


def test_a_queue_in_order_has_one_receiver() -> None:
    channel = make_channel(ordering="fifo", kind="queue")
    for _ in range(3):
        make_consumer(channel, NOWHERE, ordering=True)
    publish(channel, *[b"x"] * 9)
    fanout.fan_out(100, slot=0)
    assert Delivery.objects.values("consumer_id").distinct().count() == 1
    check()


@pytest.mark.seed("S3-46")
@pytest.mark.usefixtures("brief_pauses")
def test_a_publisher_without_keys_gets_an_order_for_each_user(receiver: Receiver) -> None:
    admin, api = Api(scopes=["admin"]), Api(scopes=["publish"])
    answer = admin.call("PUT", "/channels/events", {"ordering_key_path": "$.user"})
    assert answer.json()["ordering_key_path"] == "$.user"
    channel = Channel.objects.get(slug="events")
    values = {"ordering": True, "retry": [0.01], "max_attempts": 10}
    make_consumer(channel, receiver.url("/flaky"), **values)
    receiver.script("/flaky", [Reply(500), Reply(200), Reply(503), Reply(200)] * 4 + [Reply(200)])
    items = [{"body": json.dumps({"user": user, "n": n})} for n in range(3) for user in "abc"]
    assert api.post("/channels/events/messages/batch", items).json()["accepted"] == 9
    for n in (3, 4):
        body = json.dumps({"user": "a", "n": n}).encode()
        assert api.post("/channels/events/messages", body).status_code == 202
    with pumping.pumping() as pump:
        pump_until(pump, all_finished, seconds=60)
    for user, count in (("a", 5), ("b", 3), ("c", 3)):
        bodies = [json.loads(request.body) for request in receiver.requests()]
        heard = [body["n"] for body in bodies if body["user"] == user]
        assert heard == sorted(heard), "the same again, or the next one"
        assert set(heard) == set(range(count))
    assert set(Message.objects.values_list("ordering_key", flat=True)) == set("abc")
    check()


def test_explicit_keys_win_and_missing_ones_have_none() -> None:
    api = Api(scopes=["admin"])
    api.call("PUT", "/channels/events", {"ordering_key_path": "user.id"})
    bodies = b'{"user": {"id": "u"}}', b'{"user": 1}', b"no JSON", b""
    for body in bodies:
        assert api.post("/channels/events/messages", body).status_code == 202
    api.post("/channels/events/messages", bodies[0], Hookstation_Ordering_Key="mine")
    keys = Message.objects.order_by("id").values_list("ordering_key", flat=True)
    assert list(keys) == ["u", "", "", "", "mine"]
    api.patch("/channels/events", {"ordering": "fifo"})
    for body in bodies:
        api.post("/channels/events/messages", body)
    assert list(keys.all())[5:] == ["u", SHARED, SHARED, SHARED]


def test_a_channel_without_key_paths_does_not_parse_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels_app.core.ordering_key.Keying.key", None)
    publish(make_channel(), b'{"user": "a"}')
    assert Message.objects.get().ordering_key == ""


def test_a_null_or_too_long_path_is_refused() -> None:
    api = Api(scopes=["admin"])
    for path in (None, "x" * 201):
        answer = api.call("PUT", "/channels/events", {"ordering_key_path": path})
        assert problem(answer) == (422, "invalid_fields", "ordering_key_path"), path
