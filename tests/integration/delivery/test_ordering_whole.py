"""Ordering from the outside: configuration alone, and one pump for each key."""

from collections import defaultdict

import pytest

from delivery.models import Attempt, OrderingKey
from delivery.processes.registration import PumpRegistration
from tests.support import pumping
from tests.support.calling import Api
from tests.support.ordering import check, say
from tests.support.pumping import all_finished, make_channel, make_consumer, pump_until
from tests.support.receiver import Receiver, Reply
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.seed("S3-12", "S3-40")
def test_an_ordered_chat_sender_is_configuration(receiver: Receiver) -> None:
    """A channel, a consumer with `ordering` and a header on each message are enough."""
    admin, publisher = Api(admin=True), Api(scopes=["publish"])
    assert admin.call("PUT", "/channels/chat", {}).status_code == 201
    sender = {"url": receiver.url("/flaky"), "ordering": True, "retry": [0.01]}
    answer = admin.call("PUT", "/channels/chat/consumers/sender", sender | {"max_attempts": 20})
    assert answer.status_code == 201, answer.content
    receiver.script("/flaky", [Reply(200), Reply(500), Reply(200), Reply(200)] * 10)
    rooms = [f"room-{n}" for n in range(5)]
    for number in range(4):
        for room in rooms:
            body = f"{room}:{number}".encode()
            path = "/channels/chat/messages"
            answer = publisher.post(path, body, hookstation_ordering_key=room)
            assert answer.status_code == 202
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    heard: dict[str, list[str]] = defaultdict(list)
    for request in receiver.requests():
        room, _, digit = request.body.decode().partition(":")
        heard[room].append(digit)
    assert heard.keys() == set(rooms)
    for numbers in heard.values():
        assert numbers == sorted(numbers), "a later one went before a repeat"
        assert set(numbers) == set("0123")
    assert not OrderingKey.objects.exists()


@pytest.mark.seed("S3-10")
def test_an_ordering_key_stays_with_one_pump(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both pumps run in this process and would otherwise have the same name.
    monkeypatch.setattr(
        PumpRegistration, "worker", property(lambda held: f"pump {held.generation}")
    )
    channel = make_channel()
    consumers = 16  # enough that both pumps surely get some
    for _ in range(consumers):
        make_consumer(channel, receiver.url("/ok"), ordering=True)
    with pumping.pumping() as one, pumping.pumping() as other:
        for pump in (one, other):
            pump.assignment.refresh()
        (first, *_) = channel.consumers.all()
        for number in range(2):
            say(first, f"A{number} B{number}")

        def finish() -> bool:
            for pump in (one, other):
                pump.next_poll = 0.0
                pump.round()
            return all_finished()

        until(finish, "all are finished", 120.0)
    senders = defaultdict(set)
    for attempt in Attempt.objects.select_related("delivery"):
        row = attempt.delivery
        senders[row.consumer_id, row.ordering_key].add(attempt.worker)
    assert len(senders) == consumers * 2
    assert {len(workers) for workers in senders.values()} == {1}
    assert len(set().union(*senders.values())) == 2, "one of them sent everything"
    check()
