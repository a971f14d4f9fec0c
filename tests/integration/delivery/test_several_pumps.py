"""One consumer served by several pumps: all of them send, and its limits hold in total."""

import select
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from channels_app.database import clock
from channels_app.models import Consumer
from channels_app.registry import consumers
from delivery.core.recipients import ConsumerShare
from delivery.models import Delivery
from delivery.pump import confirmation
from delivery.pump.pump import Pump
from delivery.queue import claim
from delivery.queue.claim import ClaimRequest
from delivery.queue.fanout import fan_out
from tests.support import pumping, waiting
from tests.support.principals import acting
from tests.support.pumping import all_finished, make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)
SHARED = {"max_pumps": 2, "max_in_flight": 5}


@contextmanager
def two_pumps() -> Iterator[tuple[Pump, Pump]]:
    """Two pumps that know of each other and serve their shares."""
    with pumping.pumping() as one, pumping.pumping() as other:
        for _ in range(3):
            rounds(one, other)
        assert one.membership.owns()
        assert other.membership.owns()
        yield one, other


def rounds(*pumps: Pump) -> None:
    """Run one round of each pump, with polling and a configuration refresh."""
    for pump in pumps:
        pumping.pump_rounds(pump, 1)


def until(done: Callable[[], bool], *pumps: Pump) -> None:
    """Run rounds of all pumps in turn until ``done``."""

    def is_done() -> bool:
        if done():
            return True
        rounds(*pumps)
        return False

    waiting.until(is_done, "the pumps reach the state")


def shared_consumer(receiver: Receiver, **values: object) -> Consumer:
    return make_consumer(make_channel(), receiver.url("/"), **(SHARED | values))


def has_sent(pump: Pump) -> bool:
    return next(pump.tickets) > 1


def open_requests(*pumps: Pump) -> list[int]:
    return [len(pump.open) for pump in pumps]


def test_a_rate_limit_applies_to_all_pumps_together(receiver: Receiver) -> None:
    limits = {"rate_per_second": 0.001, "rate_burst": 5, "max_in_flight": 50}
    consumer = shared_consumer(receiver, **limits)
    with two_pumps() as pumps:
        for pump in pumps:
            pump.assignment.queues[consumer.id].arrival = 0.0  # as after a time without requests
        publish(consumer.channel, *[b"x"] * 40)
        until(lambda: len(receiver.requests()) >= 5, *pumps)
        rounds(*pumps, *pumps)
        assert len(receiver.requests()) == 5
        assert all(map(has_sent, pumps))


@pytest.mark.parametrize("values", [{"max_in_flight": 1}, {"rate_per_second": 1, "rate_burst": 1}])
def test_consumers_that_cannot_be_shared_stay_with_one_pump(
    receiver: Receiver, values: dict[str, object]
) -> None:
    shared_consumer(receiver, **values)
    with two_pumps() as pumps:
        assert sorted(len(pump.assignment.queues) for pump in pumps) == [0, 1]


@pytest.mark.trap("a limit that applies twice")
def test_the_cap_holds_when_a_pump_joins_and_leaves(receiver: Receiver) -> None:
    receiver.script("/", [Reply(hang=True)])
    consumer = shared_consumer(receiver)
    publish(consumer.channel, *[b"x"] * 40)
    with pumping.pumping() as first:
        pump_until(first, lambda: open_requests(first) == [5])
        with pumping.pumping() as second:
            for _ in range(10):
                rounds(first, second)
            assert second.assignment.queues
            assert open_requests(first, second) == [5, 0]
        rounds(first, first)
        assert len(receiver.requests()) == 5


@pytest.mark.trap("a limit that applies twice")
def test_a_new_share_waits_until_the_other_pump_knows(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.script("/", [Reply(hang=True)])
    consumer = shared_consumer(receiver, max_pumps=1)
    with two_pumps() as pumps:
        publish(consumer.channel, *[b"x"] * 3)
        until(lambda: sum(open_requests(*pumps)) == 3, *pumps)
        former, second = sorted(pumps, key=lambda pump: not pump.assignment.queues)
        monkeypatch.setattr(confirmation, "FENCE_S", 60.0)
        with confirmation.unconfirmed():
            slug, client_id = consumer.channel.slug, consumer.client_id
            consumers.patch(slug, client_id, {"max_pumps": 2}, principal=acting("user:alice"))
        publish(consumer.channel, *[b"x"] * 20)
        rounds(second, second)
        assert second.assignment.queues
        assert open_requests(former, second) == [3, 0]
        until(lambda: sum(open_requests(*pumps)) >= 5, *pumps)
        rounds(*pumps, *pumps)
        assert open_requests(former, second) in ([3, 2], [2, 3])


def test_deliveries_of_a_frozen_pump_are_sent_by_others(receiver: Receiver) -> None:
    consumer = shared_consumer(receiver)
    with two_pumps() as (one, other):
        rounds(one, other)
        publish(consumer.channel, *[b"x"] * 20)
        pump_until(one, all_finished)
    assert len(receiver.requests()) == 20


def test_a_pump_claims_other_parts_only_if_its_own_is_empty(receiver: Receiver) -> None:
    consumer = shared_consumer(receiver)
    publish(consumer.channel, *[b"x"] * 40)
    fan_out(100, 0)
    want = ClaimRequest(consumer.id, 10, 60_000, owner=7, share=ConsumerShare(1, (6, 7)))
    looked_at = Delivery.objects.order_by("due_at", "id").values_list("id", flat=True)[:21]
    own = {key for key in looked_at if key % 2 == 1}
    claimed = claim.claim([want], now=clock.now(), slot=0)
    assert len(claimed.rows) == 10
    # The claim reads one row more than requested, which may be older than the last.
    assert len(own.intersection(row.id for row in claimed.rows)) >= min(10, len(own)) - 1
    assert claimed.still_due
    rest = claim.claim([replace(want, limit=40)], now=clock.now(), slot=0)
    assert len(rest.rows) == 30


def test_the_order_of_a_key_holds_across_pumps(receiver: Receiver) -> None:
    keys = 8
    consumer = shared_consumer(receiver, ordering=True)
    for number in range(24):
        publish(consumer.channel, b"%d" % number, ordering_key=f"key-{number % keys}")
    with two_pumps() as pumps:
        until(all_finished, *pumps)
        assert all(map(has_sent, pumps))
    came: dict[int, list[int]] = defaultdict(list)
    for request in receiver.requests():
        came[int(request.body) % keys].append(int(request.body))
    assert all(numbers == sorted(numbers) for numbers in came.values())
    assert sum(map(len, came.values())) == 24


def test_what_one_pump_queues_wakes_the_others(receiver: Receiver) -> None:
    receiver.script("/", [Reply(hang=True)])
    consumer = shared_consumer(receiver)
    with two_pumps() as (one, other):
        other.listener.read()
        publish(consumer.channel, *[b"x"] * 40)
        until(lambda: len(one.open) >= 2, one)
        assert select.select([other.listener.socket], [], [], 60.0)[0]
        assert other.listener.read().consumer_ids == {consumer.id}
