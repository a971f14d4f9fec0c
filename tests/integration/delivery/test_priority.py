"""The eligible delivery with the highest priority goes first, across consumers."""

import select
from dataclasses import replace

import pytest
from pytest_django import DjangoAssertNumQueries

from channels_app.database import clock
from channels_app.models import Message
from delivery import conf as conf_module
from delivery.models import Delivery
from delivery.processes.wakeups import wakeup_sender
from delivery.pump import capacity
from delivery.pump import pump as pump_module
from delivery.pump.capacity import CLAIM_BATCH
from delivery.pump.pump import FAN_OUT_GUARD
from delivery.queue import fanout, waiting_messages
from delivery.queue.waiting_messages import MAX_SEEN
from tests.support import pumping
from tests.support.pumping import (
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_rounds,
    pump_until,
)
from tests.support.receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)

SEEN = 64
"""Fewer messages than a fan-out really looks at, so that a backlog needs fewer rows."""


@pytest.fixture
def _one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit pumps to one request, so that the order of requests shows their choices."""
    one = replace(conf_module.conf(), pump_in_flight=1)
    for module in (capacity, pump_module):
        monkeypatch.setattr(module, "conf", lambda: one)


def fan_out() -> None:
    """Fan out all accepted messages without claiming any."""
    while fanout.fan_out(1_000, slot=0).more:
        pass


@pytest.mark.trap("a bulk load delays urgent messages")
@pytest.mark.usefixtures("_one_request")
def test_the_highest_priority_goes_first_across_consumers(receiver: Receiver) -> None:
    for name, priority in (("low", 0), ("high", 9), ("middle", 4)):
        channel = make_channel()
        for n in range(2):
            make_consumer(channel, receiver.url(f"/ok/{name}?n={n}"))
        publish(channel, *[name.encode()] * 2, priority=priority)
    fan_out()
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    names = [request.body.decode() for request in receiver.requests()]
    assert names[:8] == ["high"] * 4 + ["middle"] * 4


@pytest.mark.trap("a bulk load delays urgent messages")
@pytest.mark.parametrize(
    ("step", "priority", "is_sent"),
    [
        ("_claim", 9, True),
        ("_send_claimed", 9, True),
        ("_record", 9, True),
        ("_record", 0, False),
    ],
)
def test_urgent_deliveries_are_sent_between_two_steps(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, step: str, priority: int, is_sent: bool
) -> None:
    """In the round in which it was accepted, even to a consumer with a backlog."""
    channel = make_channel()
    consumer = make_consumer(channel, receiver.url("/"))
    publish(channel, *[b"low"] * 20, priority=0)
    fan_out()
    with pumping.pumping() as pump:
        wakeup_sender.close()  # it may still know the pumps of another test
        pump_rounds(pump, 1)
        whole, accepted = getattr(pump, step), list[int]()

        def meanwhile(*arguments: object) -> object:
            done = whole(*arguments)
            if not accepted:
                accepted.extend(publish(channel, b"new", priority=priority))
                assert select.select([pump.listener.socket], [], [], 60.0)[0]
            return done

        monkeypatch.setattr(pump, step, meanwhile)
        publish(channel, *[b"low"] * 20, priority=0)
        pump.next_scan = 0.0  # not resting after the last round's claims
        pump.round()
        sent = {row.message_id for row, *_ in pump.open.values()}
        found = consumer.deliveries.filter(message_id__in=accepted)
        assert (bool(sent.intersection(accepted)) or found.exists()) is is_sent


def test_ordinary_messages_do_not_pass_their_own_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the pump has claimed nothing so far, with which it could compare them."""
    monkeypatch.setattr(waiting_messages, "MAX_SEEN", SEEN)
    monkeypatch.setattr(capacity, "FANOUT_BATCH", 4)
    channel = make_channel()
    make_consumer(channel, "", mode="pull")
    with pumping.pumping() as pump:
        wakeup_sender.close()
        publish(channel, *[b"x"] * 2 * SEEN)
        pump_rounds(pump, 5)
        assert 0 < Delivery.objects.count() <= 5 * capacity.FANOUT_BATCH


@pytest.mark.trap("a bulk load delays urgent messages")
def test_urgent_messages_are_fanned_out_before_a_backlog(receiver: Receiver) -> None:
    """At most two fan-outs and claims go before it: one was the starvation guard's."""
    low, high = make_channel(), make_channel()
    make_consumer(low, receiver.url("/low"), max_in_flight=5)
    urgent = make_consumer(high, receiver.url("/high"))
    publish(low, *[b"low"] * (2 * MAX_SEEN), priority=0)
    publish(high, b"high", priority=9)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: urgent.deliveries.exists())
        assert Delivery.objects.count() <= 2 * capacity.FANOUT_BATCH + 1


def test_the_oldest_backlog_is_fanned_out_alongside_urgent_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The starvation guard of the fan-out, as a pump requests it."""
    monkeypatch.setattr(waiting_messages, "MAX_SEEN", SEEN)
    channel = make_channel()
    make_consumer(channel, "http://127.0.0.1:9/")
    (oldest,) = publish(channel, b"low", priority=0)
    publish(channel, *[b"high"] * SEEN, priority=9)
    assert fanout.fan_out(10, slot=0).message_count == 10
    assert not Delivery.objects.filter(message_id=oldest).exists()
    assert fanout.fan_out(10, slot=0, oldest_first=True).message_count == 10
    assert Delivery.objects.filter(message_id=oldest).exists()


@pytest.mark.mariadb
def test_the_rest_of_a_backlog_is_read_with_one_query(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    monkeypatch.setattr(waiting_messages, "MAX_SEEN", SEEN)
    channel = make_channel()
    make_consumer(channel, "http://127.0.0.1:9/")
    publish(channel, *[b"low"] * 30, priority=0)
    publish(channel, *[b"high"] * 40, priority=9)
    made = fanout.fan_out(40, slot=0)
    assert (made.message_count, made.priority, made.is_backlog) == (40, 9, True)
    with django_assert_num_queries(3):  # read, lock and write
        made = fanout.fan_out(20, slot=0, is_backlog=True)
    assert (made.message_count, made.priority, made.is_backlog) == (20, 0, True)
    made = fanout.fan_out(20, slot=0, is_backlog=True)
    assert (made.message_count, made.is_backlog) == (10, False)
    assert not fanout.fan_out(20, slot=0, is_backlog=True).message_count


@pytest.mark.usefixtures("_one_request")
def test_the_starvation_guard_applies_to_fan_outs(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Low priorities are fanned out eventually, however much urgent work arrives."""
    monkeypatch.setattr(waiting_messages, "MAX_SEEN", SEEN)
    channel = make_channel()
    low = make_consumer(channel, receiver.url("/low"), event_types=["low"])
    make_consumer(channel, receiver.url("/high"), event_types=["high"])
    publish(channel, b"low", priority=0, event_type="low")
    with pumping.pumping() as pump:
        for _ in range(3 * FAN_OUT_GUARD):
            waiting = SEEN + 1 - Message.objects.filter(state="accepted").count()
            publish(channel, *[b"high"] * waiting, priority=9, event_type="high")
            pump_rounds(pump, 1)
            if low.deliveries.exists():
                break
        assert low.deliveries.exists()


def test_a_key_keeps_its_order_in_a_backlog_of_mixed_priorities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An urgent message of a key does not overtake messages accepted earlier."""
    monkeypatch.setattr(waiting_messages, "MAX_SEEN", SEEN)
    channel = make_channel()
    consumer = make_consumer(channel, "http://127.0.0.1:9/", ordering=True)
    first = publish(channel, *[b"x"] * 30, priority=0, ordering_key="room")
    then = publish(channel, *[b"x"] * 30, priority=9, ordering_key="room")
    publish(channel, *[b"x"] * SEEN, priority=9)
    while fanout.fan_out(20, slot=0).message_count:
        pass
    keyed = consumer.deliveries.filter(ordering_key="room").order_by("id")
    assert list(keyed.values_list("message_id", flat=True)) == [*first, *then]


def test_a_step_is_small_while_priorities_are_mixed(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "MIXED_S", 60.0)
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))

    def fanout_limit(*priorities: int) -> int:
        for priority in priorities:
            (message_id,) = publish(channel, b"x", priority=priority)
            done = Delivery.objects.filter(message_id=message_id, state="delivered")
            pump_until(pump, done.exists)
        return pump.capacity_planner.fanout_limit(clock.now())

    with pumping.pumping() as pump:
        assert fanout_limit(4, 4) > capacity.MIXED_BATCH
        assert fanout_limit(9) == capacity.MIXED_BATCH < CLAIM_BATCH
