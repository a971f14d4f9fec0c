"""Replayed and backfilled deliveries reach a real consumer, with the right headers."""

import pytest

from channels_app.core import ids
from channels_app.database import clock
from delivery import replay
from delivery.models import Attempt, Delivery
from tests.support.counts import assert_counters_are_true
from tests.support.principals import acting
from tests.support.pumping import (
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_until,
    pumping,
)
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)
OPERATOR = acting("user:operator")


@pytest.mark.seed("S0-07")
def test_a_window_of_the_past_is_sent_again_and_nothing_else(receiver: Receiver) -> None:
    channel = make_channel()
    consumer = make_consumer(channel, receiver.url("/hook"))
    publish(channel, *[b"before"] * 5)
    begins = clock.now().isoformat()
    window = publish(channel, *[b"window"] * 10)
    ends = clock.now().isoformat()
    publish(channel, *[b"after"] * 5)
    with pumping() as pump:
        pump_until(pump, all_finished)
        wanted = replay.parse(
            {
                "channel": channel.slug,
                "consumer": consumer.client_id,
                "states": ["delivered"],
                "from": begins,
                "to": ends,
            }
        )
        replay.create(wanted, [consumer], OPERATOR, now=clock.now())
        assert replay.run_due(clock.now(), 0) == 10
        pump_until(pump, all_finished)

    first, again = receiver.requests("/hook")[:20], receiver.requests("/hook")[20:]
    assert {request.header("hookstation-replay") for request in first} == {None}
    assert {request.header("hookstation-replay") for request in again} == {"true"}
    assert {request.header("hookstation-attempt") for request in again} == {"1"}
    assert sorted(request.header("webhook-id") or "" for request in again) == sorted(
        ids.to_public(ids.MESSAGE, number) for number in window
    )
    assert Attempt.objects.filter(delivery__message_id__in=window).count() == 20
    assert_counters_are_true()


def test_a_replayed_dead_letter_gets_a_new_budget(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/hook"), max_attempts=2)
    receiver.script("/hook", [Reply(500), Reply(500), Reply(500), Reply(200)])
    publish(channel, b"hello")
    with pumping() as pump:
        pump_until(pump, all_finished)
        row = Delivery.objects.get()
        assert (row.state, row.attempt_count) == ("dead", 2)
        replay.replay_one(row.id, OPERATOR, now=clock.now())
        pump_until(pump, all_finished)

    row.refresh_from_db()
    assert (row.state, row.attempt_count, row.failure_count) == ("delivered", 4, 1)
    attempts = [request.header("hookstation-attempt") for request in receiver.requests("/hook")]
    assert attempts == ["1", "2", "1", "2"]
    assert_counters_are_true()


def test_a_late_consumer_gets_past_messages(receiver: Receiver) -> None:
    channel = make_channel()
    published = publish(channel, b"one", b"two", b"three")
    with pumping() as pump:
        pump.round()
        late = make_consumer(channel, receiver.url("/late"))
        wanted = replay.parse({}, kind="missing").within(channel.slug, late.client_id)
        replay.create(wanted, [late], OPERATOR, now=clock.now())
        replay.run_due(clock.now(), 0)
        pump_until(pump, all_finished)

    heard = receiver.requests("/late")
    assert sorted(request.header("webhook-id") or "" for request in heard) == [
        ids.to_public(ids.MESSAGE, number) for number in published
    ]
    assert {request.header("hookstation-replay") for request in heard} == {None}
    assert_counters_are_true()
