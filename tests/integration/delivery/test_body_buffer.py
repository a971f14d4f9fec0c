"""Large bodies: a pump limits the bytes in flight, in total and for each consumer."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from channels_app.database import clock
from delivery import conf as conf_module
from delivery.models import Attempt, Delivery
from delivery.pump import body_buffer, consumer_queue
from delivery.pump.pump import Pump
from tests.support import pumping
from tests.support.pumping import all_finished, make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)

LARGE = b"x" * 100_000
MOST = 1_600_000
"""Bytes that a pump may have in flight; a consumer's share is two large bodies."""


@pytest.fixture(autouse=True)
def _few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(conf_module.conf(), pump_body_bytes=MOST)
    for module in (body_buffer, consumer_queue):
        monkeypatch.setattr(module, "conf", lambda: few)


def on_their_way(pump: Pump) -> int:
    return sum(size for *_, size in pump.open.values())


def does_not_spin(pump: Pump) -> bool:
    """Whether a pump without room waits for an event, although deliveries are due."""
    pump.next_poll = pump.membership.next_beat = time.monotonic() + 60.0
    return pump._max_wait_s() > 1.0


def watched(pump: Pump, done: Callable[[], bool]) -> int:
    """Return the most bytes in flight at the end of a round until ``done``."""
    most = [0]

    def look() -> bool:
        most[0] = max(most[0], on_their_way(pump))
        return done()

    pump_until(pump, look)
    return most[0]


def test_large_bodies_are_sent_a_few_at_a_time_and_all_arrive(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/slow?ms=30"))
    publish(channel, *[LARGE + b"%d" % n for n in range(6)])
    with pumping.pumping() as pump:
        most = watched(pump, all_finished)
        assert on_their_way(pump) == 0
    assert 0 < most <= MOST // consumer_queue.BYTE_SHARES
    assert {request.body for request in receiver.requests()} == {
        LARGE + b"%d" % n for n in range(6)
    }
    assert set(Attempt.objects.values_list("outcome", "number")) == {("delivered", 1)}


def test_claims_for_a_consumer_with_large_bodies_fit_the_memory(receiver: Receiver) -> None:
    """Once the pump knows how large they usually are; the others are not even claimed."""
    channel = make_channel()
    make_consumer(channel, receiver.url("/hook"))
    publish(channel, *[LARGE] * 15)
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
        publish(channel, *[LARGE] * 6)
        receiver.script("/hook", [Reply(hang=True)])
        pump_until(pump, lambda: len(pump.open) == 2)
        assert Delivery.objects.filter(state="in_flight").count() == 2
        assert does_not_spin(pump)


def test_many_consumers_together_stay_within_the_pumps_bytes(receiver: Receiver) -> None:
    channel = make_channel()
    for n in range(20):
        make_consumer(channel, receiver.url(f"/slow?ms=30&n={n}"))
    publish(channel, LARGE, LARGE)
    with pumping.pumping() as pump:
        most = watched(pump, all_finished)
    # Beyond the limit, each consumer may have one body in flight.
    assert most <= MOST + 20 * len(LARGE)
    assert len(receiver.requests()) == 40


def test_a_body_above_the_byte_limit_is_still_sent(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))
    publish(channel, b"y" * (MOST + 1), b"small")
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    assert {len(request.body) for request in receiver.requests()} == {MOST + 1, 5}


def test_consumers_that_hang_on_large_bodies_leave_room_for_another(receiver: Receiver) -> None:
    channel, healthy = make_channel(), make_channel()
    for n in range(7):
        make_consumer(channel, receiver.url(f"/hang?n={n}"))
    make_consumer(healthy, receiver.url("/ok"))
    publish(channel, *[LARGE] * 3)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: len(pump.open) >= 14)
        publish(healthy, LARGE, LARGE)
        pump_until(pump, lambda: Delivery.objects.filter(state="delivered").count() == 2)
        assert on_their_way(pump) == 14 * len(LARGE)


def test_a_delivery_that_waits_for_memory_is_released_before_its_lease_ends(
    receiver: Receiver,
) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/hang"))
    publish(channel, *[LARGE] * 5)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: len(pump.claimed) == 3)
        assert does_not_spin(pump)
        later = clock.now() + timedelta(seconds=11)
        pump.claimed = [
            (row._replace(lease_until=row.lease_until - (later - clock.now())), consumer_queue)
            for row, consumer_queue in pump.claimed
        ]
        pump_until(pump, lambda: Attempt.objects.filter(outcome="interrupted").count() == 3)
        assert on_their_way(pump) == 2 * len(LARGE)
