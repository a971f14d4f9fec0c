"""Consumers that hang do not keep others from getting their messages."""

import select
import time
from dataclasses import replace
from functools import partial

import pytest

from channels_app.models import Channel, Message
from delivery import conf as conf_module
from delivery.models import Delivery
from delivery.processes.wakeups import wakeup_sender
from delivery.pump import capacity
from delivery.pump import pump as pump_module
from delivery.pump.capacity import RESERVED, UNTRIED_RESERVED
from delivery.pump.consumer_queue import PROMPT_S
from delivery.pump.pump import Pump
from delivery.queue import waiting_messages
from tests.support import pumping
from tests.support.pumping import make_channel, make_consumer, publish, pump_rounds, pump_until
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)

REQUESTS = 16


@pytest.fixture(autouse=True)
def _few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(conf_module.conf(), pump_in_flight=REQUESTS)
    for module in (capacity, pump_module):
        monkeypatch.setattr(module, "conf", lambda: few)


@pytest.mark.trap("one slow consumer delays all")
def test_consumers_that_hang_do_not_take_the_last_requests(receiver: Receiver) -> None:
    """More consumers hang than a pump has requests, and one answers."""
    known, broken = make_channel(), make_channel()
    make_consumer(known, receiver.url("/ok"))
    with pumping.pumping() as pump:
        deliver(pump, known, 5)
        for n in range(REQUESTS + 8):
            make_consumer(broken, receiver.url(f"/hang?n={n}"))
        publish(broken, *[b"x"] * 3)
        pump_until(pump, lambda: len(pump.open) >= REQUESTS - REQUESTS // UNTRIED_RESERVED)
        pump_rounds(pump, 10)
        pump.next_poll = pump.membership.next_beat = time.monotonic() + 60.0
        assert pump._max_wait_s() > 1.0, "it spins, although nobody may take anything"

        deliver(pump, known, 5)
        assert len(pump.open) < REQUESTS


def test_a_new_consumer_is_tried_while_others_hang(receiver: Receiver) -> None:
    broken, new = make_channel(), make_channel()
    for n in range(6):
        make_consumer(broken, receiver.url(f"/hang?n={n}"))
    publish(broken, *[b"x"] * 8)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: len(pump.open) >= REQUESTS - REQUESTS // RESERVED - 2)
        pump_rounds(pump, 10)
        make_consumer(new, receiver.url("/ok"))
        deliver(pump, new, 5)


@pytest.mark.trap("one slow consumer delays all")
def test_consumers_that_begin_to_hang_leave_room_before_their_circuits_open(
    receiver: Receiver,
) -> None:
    """All of them answered so far: only their open requests show that they hang."""
    channels, healthy = [make_channel() for _ in range(5)], make_channel()
    for n, channel in enumerate(channels):
        make_consumer(channel, receiver.url(f"/turns-{n}"))
    make_consumer(healthy, receiver.url("/ok"))
    with pumping.pumping() as pump:
        for channel in (*channels, healthy):
            deliver(pump, channel, 1)
        for n, channel in enumerate(channels):  # one after the other
            receiver.script(f"/turns-{n}", [Reply(hang=True)] * 6)
            publish(channel, *[b"x"] * 6)
            pump_until(pump, partial(_is_called_again, receiver, f"/turns-{n}"))
        for queue in pump.assignment.queues.values():
            queue.answered_at -= PROMPT_S
            queue.began = {ticket: at - PROMPT_S for ticket, at in queue.began.items()}
        deliver(pump, healthy, 5)
        assert {queue.circuit.state for queue in pump.assignment.queues.values()} == {"closed"}


BACKLOG, SEEN = 100, 64
"""Messages of a backlog, and how many a fan-out looks at in these tests."""


@pytest.mark.trap("one slow consumer delays all")
@pytest.mark.parametrize(
    ("event_type", "ordering_key", "max_in_flight", "passes"),
    [
        ("ok", "", 1, True),
        ("ok", "", 64, True),
        ("ok", "room", 64, False),
        ("slow", "", 64, False),
    ],
)
def test_a_message_for_an_idle_consumer_passes_a_backlog(
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    event_type: str,
    ordering_key: str,
    max_in_flight: int,
    passes: bool,
) -> None:
    """But not in an ordering key, and not to a consumer that the backlog is for."""
    monkeypatch.setattr(waiting_messages, "MAX_SEEN", SEEN)
    monkeypatch.setattr(capacity, "FANOUT_BATCH", 4)
    monkeypatch.setattr(capacity, "MIXED_BATCH", 4)
    channel = make_channel()
    idle = make_consumer(channel, receiver.url("/ok"), event_types=["ok"], ordering=True)
    make_consumer(channel, receiver.url("/slow"), event_types=["slow"], max_in_flight=max_in_flight)
    receiver.script("/slow", [Reply(hang=True)] * BACKLOG)
    with pumping.pumping() as pump:
        wakeup_sender.close()  # it may still know the pumps of another test
        deliver(pump, channel, 1, event_type="ok")
        publish(channel, *[b"x"] * BACKLOG, event_type="slow")
        pump_rounds(pump, 2)
        assert idle.deliveries.count() == 1
        (new,) = publish(channel, b"y", event_type=event_type, ordering_key=ordering_key)
        assert select.select([pump.listener.socket], [], [], 60.0)[0]
        pump_rounds(pump, 1)
        assert Message.objects.filter(state="accepted").count() > SEEN
        assert Delivery.objects.filter(message_id=new).exists() is passes


@pytest.mark.trap("one slow consumer delays all")
def test_a_message_for_an_idle_consumer_is_sent_between_two_steps(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While deliveries of slow consumers wait for room in the pump."""
    broken, healthy = make_channel(), make_channel()
    for n in range(6):
        make_consumer(broken, receiver.url(f"/hang?n={n}"))
    consumer = make_consumer(healthy, receiver.url("/ok"))
    with pumping.pumping() as pump:
        wakeup_sender.close()
        deliver(pump, healthy, 5)
        publish(broken, *[b"x"] * 8)
        pump_until(pump, lambda: len(pump.open) >= REQUESTS - REQUESTS // RESERVED - 2)
        pump_rounds(pump, 10)
        whole, accepted = pump._record, list[int]()

        def meanwhile() -> None:
            whole()
            if not accepted:
                accepted.extend(publish(healthy, b"y"))
                assert select.select([pump.listener.socket], [], [], 60.0)[0]

        monkeypatch.setattr(pump, "_record", meanwhile)
        pump.round()
        assert consumer.deliveries.filter(message_id__in=accepted).exists()


def test_a_single_hanging_consumer_uses_at_most_half_of_the_shared_requests(
    receiver: Receiver,
) -> None:
    channel = make_channel()
    half = (REQUESTS - REQUESTS // RESERVED) // 2
    make_consumer(channel, receiver.url("/hang"), max_in_flight=20)
    publish(channel, *[b"x"] * 20)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: len(pump.open) == half)
        pump_rounds(pump, 10)
        assert len(pump.open) == half


def _is_called_again(receiver: Receiver, path: str) -> bool:
    return len(receiver.requests(path)) > 1


def deliver(pump: Pump, channel: Channel, count: int, event_type: str = "") -> None:
    """Publish ``count`` messages and wait until they are delivered."""
    mine = Delivery.objects.filter(channel=channel, state="delivered")
    wanted = mine.count() + count
    publish(channel, *[b"y"] * count, event_type=event_type)
    pump_until(pump, lambda: mine.count() == wanted)
