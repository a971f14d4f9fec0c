"""Consumers that hang do not keep others from getting their messages."""

import time
from dataclasses import replace
from functools import partial

import pytest

from channels_app.models import Channel
from delivery import conf as conf_module
from delivery.models import Delivery
from delivery.pump import capacity
from delivery.pump import pump as pump_module
from delivery.pump.capacity import RESERVED, UNTRIED_RESERVED
from delivery.pump.consumer_queue import PROMPT_S
from delivery.pump.pump import Pump
from tests.support import pumping
from tests.support.pumping import make_channel, make_consumer, publish, pump_rounds, pump_until
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)

REQUESTS = 32


@pytest.fixture(autouse=True)
def _few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(conf_module.conf(), pump_in_flight=REQUESTS)
    for module in (capacity, pump_module):
        monkeypatch.setattr(module, "conf", lambda: few)


@pytest.mark.trap("one slow consumer delays all")
def test_consumers_that_hang_do_not_take_the_last_requests(receiver: Receiver) -> None:
    """More consumers hang than a pump has requests; one answers, as a known or a new one."""
    known, broken = make_channel(), make_channel()
    make_consumer(known, receiver.url("/ok"))
    with pumping.pumping() as pump:
        deliver(pump, known, 5)
        for n in range(REQUESTS + 8):
            make_consumer(broken, receiver.url(f"/hang?n={n}"))
        publish(broken, *[b"x"] * 20)
        pump_until(pump, lambda: len(pump.open) >= REQUESTS - REQUESTS // UNTRIED_RESERVED)
        pump_rounds(pump, 20)
        pump.next_poll = pump.membership.next_beat = time.monotonic() + 60.0
        assert pump._max_wait_s() > 1.0, "it spins, although nobody may take anything"

        deliver(pump, known, 20)
        assert len(pump.open) < REQUESTS


def test_a_new_consumer_is_tried_while_others_hang(receiver: Receiver) -> None:
    broken, new = make_channel(), make_channel()
    for n in range(6):
        make_consumer(broken, receiver.url(f"/hang?n={n}"))
    publish(broken, *[b"x"] * 20)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: len(pump.open) >= REQUESTS - REQUESTS // RESERVED - 2)
        pump_rounds(pump, 20)
        make_consumer(new, receiver.url("/ok"))
        deliver(pump, new, 20)


@pytest.mark.trap("one slow consumer delays all")
def test_consumers_that_begin_to_hang_leave_room_before_their_circuits_open(
    receiver: Receiver,
) -> None:
    """All of them answered so far: only their open requests show that they hang."""
    channels, healthy = [make_channel() for _ in range(8)], make_channel()
    for n, channel in enumerate(channels):
        make_consumer(channel, receiver.url(f"/turns-{n}"))
    make_consumer(healthy, receiver.url("/ok"))
    with pumping.pumping() as pump:
        for channel in (*channels, healthy):
            deliver(pump, channel, 1)
        for n, channel in enumerate(channels):  # one after the other
            receiver.script(f"/turns-{n}", [Reply(hang=True)] * 100)
            publish(channel, *[b"x"] * 20)
            pump_until(pump, partial(_is_called_again, receiver, f"/turns-{n}"))
        hung = time.monotonic() + PROMPT_S
        pump_until(pump, lambda: time.monotonic() > hung)
        deliver(pump, healthy, 20)
        assert {queue.circuit.state for queue in pump.assignment.queues.values()} == {"closed"}


def test_a_single_hanging_consumer_uses_at_most_half_of_the_shared_requests(
    receiver: Receiver,
) -> None:
    channel = make_channel()
    half = (REQUESTS - REQUESTS // RESERVED) // 2
    make_consumer(channel, receiver.url("/hang"), max_in_flight=20)
    publish(channel, *[b"x"] * 30)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: len(pump.open) == half)
        pump_rounds(pump, 10)
        assert len(pump.open) == half


def _is_called_again(receiver: Receiver, path: str) -> bool:
    return len(receiver.requests(path)) > 1


def deliver(pump: Pump, channel: Channel, count: int, *, consumers: int = 1) -> None:
    """Publish ``count`` messages and wait until they are delivered."""
    mine = Delivery.objects.filter(channel=channel, state="delivered")
    wanted = mine.count() + count * consumers
    publish(channel, *[b"y"] * count)
    pump_until(pump, lambda: mine.count() == wanted)
