"""Channels of kind queue: each message goes to exactly one of the consumers."""

from collections import Counter as Tally
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from channels_app.database import clock
from channels_app.models import Channel, Consumer
from channels_app.registry.cache import config_cache
from delivery import conf as conf_module
from delivery.maintenance import sweeps
from delivery.models import ConsumerHealth, Counter, Delivery, PullWorker
from delivery.pull import receiving
from delivery.pump import assignment
from delivery.queue import cancel, claim, fanout, ordering_keys
from delivery.queue.claim import ClaimRequest
from tests.support.calling import Api, problem
from tests.support.counts import assert_counters_are_true
from tests.support.factories import ConsumerFactory, DeliveryFactory, TeamFactory
from tests.support.ordering import check
from tests.support.pulling import Worker, bring, lapse, waiting
from tests.support.pumping import make_channel, make_consumer, publish, pump_until, pumping
from tests.support.receiver import Receiver

pytestmark = pytest.mark.django_db
NOWHERE = "http://127.0.0.1:9/"


def dealt(channel: Channel) -> Tally[str]:
    rows = Delivery.objects.filter(channel=channel)
    return Tally(rows.values_list("consumer__client_id", flat=True))


@pytest.mark.seed("S2-04")
@pytest.mark.seed("S2-05", "S4-38", "S1-03")
@pytest.mark.parametrize(("kind", "each"), [("queue", 100), ("topic", 300)])
def test_three_consumers_and_300_messages(kind: str, each: int) -> None:
    channel = make_channel(kind=kind)
    consumers = [waiting(channel=channel, client_id=name) for name in "abc"]
    bring(consumers[0], *[b"x"] * 300)
    assert dealt(channel) == dict.fromkeys("abc", each)
    copies = Tally(Delivery.objects.filter(state="queued").values_list("message_id", flat=True))
    assert len(copies) == 300
    assert set(copies.values()) == {each // 100}
    assert_counters_are_true()


def test_push_and_pull_consumers_compete(receiver: Receiver) -> None:
    channel = make_channel(kind="queue")
    make_consumer(channel, receiver.url("/ok"), client_id="push")
    pull = waiting(channel=channel, client_id="pull")
    with pumping() as pump:
        bring(pull, *[str(n).encode() for n in range(20)])
        worker = Worker(pull)
        received = worker.receive(max=100)
        worker.say("ack", *(one["lease"] for one in received))
        pump_until(pump, lambda: Counter.totals()["delivered"] == 20)
    bodies = [one["body"] for one in received]
    bodies += [request.body.decode() for request in receiver.requests()]
    assert sorted(map(int, bodies)) == list(range(20))
    assert len(received) == 10


def test_an_idle_consumer_gets_the_messages_of_a_slow_one() -> None:
    channel = make_channel(kind="queue")
    slow, quick = (waiting(channel=channel, client_id=name) for name in ("slow", "quick"))
    for _ in range(5):
        bring(slow, b"x")
        worker = Worker(quick)
        worker.say("ack", *(one["lease"] for one in worker.receive()))
    assert dealt(channel) == {"slow": 1, "quick": 4}


@pytest.mark.seed("S4-24")
def test_a_failing_consumer_is_skipped_until_its_probe(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = replace(conf_module.conf(), breaker_failures=3, breaker_base_ms=60_000)
    monkeypatch.setattr(assignment, "conf", lambda: soon)
    channel = make_channel(kind="queue")
    for name in "ab":
        make_consumer(channel, receiver.url(f"/{name}"), client_id=name)
    path = "/status/500"
    failing = make_consumer(
        channel, receiver.url(path), client_id="c", retry=[0.01], max_attempts=100
    )

    def is_open() -> bool:
        return ConsumerHealth.objects.filter(consumer=failing, circuit="open").exists()

    with pumping() as pump:
        publish(channel, *[b"x"] * 12)
        pump_until(pump, is_open, seconds=30)
    ConsumerHealth.objects.update(next_probe_at=clock.now() + timedelta(hours=1))
    had = dealt(channel)
    publish(channel, *[b"x"] * 20)
    fanout.fan_out(100, slot=0)
    share = dealt(channel)
    assert (sum(share.values()), share["c"]) == (32, had["c"])
    ConsumerHealth.objects.update(next_probe_at=clock.now())
    publish(channel, *[b"x"] * 90)
    fanout.fan_out(100, slot=0)
    assert dealt(channel)["c"] > had["c"], "it is not tried again"


def switch(consumer: Consumer | str, state: str) -> None:
    """Set the state of a consumer, given as row or name; every process knows it at once."""
    name = consumer if isinstance(consumer, str) else consumer.client_id
    row = Consumer.objects.get(client_id=name)
    row.state = state
    row.save()


def sweep() -> int:
    return sum(sweeps.reassigned())


def test_the_search_for_idle_consumers_takes_few_queries_for_many_queues(
    django_assert_max_num_queries: Any,
) -> None:
    for _ in range(10):
        waiting(b"x", channel=make_channel(kind="queue"))
    Consumer.objects.update(updated_at=clock.now() - timedelta(hours=1))
    config_cache.channels()
    with django_assert_max_num_queries(12):
        assert sweep() == 0, "each queue has one consumer"


@pytest.mark.trap("a queue's message stuck with an absent consumer")
@pytest.mark.parametrize("what", ["paused", "disabled", "retired"])
def test_messages_of_a_disabled_consumer_go_to_others(what: str) -> None:
    """None of 30 messages stays behind."""
    channel = make_channel(kind="queue")
    a, *_ = (waiting(channel=channel, client_id=name) for name in "abc")
    bring(a, *[b"x"] * 30)
    assert dealt(channel) == {"a": 10, "b": 10, "c": 10}
    switch(a, what)
    assert sweep() == 10
    assert dealt(channel) == {"b": 15, "c": 15}
    assert sweep() == 0
    assert sum(sweeps.retired()) == 0
    assert_counters_are_true()


@pytest.mark.trap("a queue's message stuck with an absent consumer")
def test_messages_of_an_idle_pull_consumer_go_to_others() -> None:
    channel = make_channel(kind="queue")
    a, b = (waiting(channel=channel, client_id=name) for name in "ab")
    bring(a, *[b"x"] * 10)
    worker = Worker(a)
    assert len(worker.receive(max=2)) == 2
    now = clock.now()
    Consumer.objects.update(updated_at=now - timedelta(hours=1))
    assert Worker(b).receive(max=1, wait_s=0) != []
    assert sweep() == 0, "both have asked just now"
    PullWorker.objects.filter(consumer=a).update(seen_at=now - timedelta(minutes=2))
    receiving._noted.clear()
    assert sweep() == 3
    assert dealt(channel) == {"a": 2, "b": 8}, "what it holds stays until its lease ends"
    bring(a, *[b"x"] * 5)
    assert dealt(channel) == {"a": 2, "b": 13}
    lapse(a)
    assert sweeps.lapsed() == 2
    assert (sweep(), dealt(channel)) == (2, {"b": 15})
    assert worker.receive() == []
    bring(a, *[b"x"] * 2)
    assert dealt(channel) == {"a": 2, "b": 15}, "who asks again gets again"
    assert_counters_are_true()


def test_attempted_messages_move_only_within_the_team() -> None:
    """Who sees a delivery sees its responses, which only the consumer's team may."""
    channel = make_channel(kind="queue")
    mine, yours = TeamFactory.create(), TeamFactory.create()
    failing = make_consumer(channel, NOWHERE, client_id="failing", team=mine)
    make_consumer(channel, NOWHERE, client_id="yours", team=yours)
    tried = DeliveryFactory.create(consumer=failing, retrying=True)
    fresh = DeliveryFactory.create(consumer=failing)
    ConsumerHealth.objects.create(
        consumer=failing, circuit="open", next_probe_at=clock.now() + timedelta(hours=1)
    )
    assert sweep() == 1
    assert dealt(channel) == {"failing": 1, "yours": 1}
    assert Delivery.objects.get(id=fresh.id).consumer.client_id == "yours"
    make_consumer(channel, NOWHERE, client_id="mine", team=mine)
    assert sweep() == 1
    row = Delivery.objects.get(id=tried.id)
    assert (row.consumer.client_id, row.failure_count) == ("mine", 1)
    assert row.due_at is not None
    assert row.due_at <= clock.now(), "the wait was the former consumer's"
    assert_counters_are_true()


def test_keys_stay_with_a_consumer_until_it_is_retired() -> None:
    channel = make_channel(kind="queue")
    for name in "ab":
        make_consumer(channel, NOWHERE, client_id=name, ordering=True)
    publish(channel, *[b"x"] * 4, ordering_key="k")
    fanout.fan_out(100, slot=0)
    ((owner, count),) = dealt(channel).items()
    assert count == 4
    switch(owner, "paused")
    assert sweep() == 0
    switch(owner, "retired")
    assert sweep() == 4
    assert set(dealt(channel)) == {"a", "b"} - {owner}
    rows = Delivery.objects.filter(channel=channel).order_by("id")
    assert [row.is_behind for row in rows] == [False, True, True, True]
    sum(ordering_keys.repair(clock.now()))  # deletes the row of the remaining key
    check()


def test_without_other_consumers_messages_wait_and_are_cancelled_on_retirement() -> None:
    channel = make_channel(kind="queue")
    alone = waiting(b"x", b"y", channel=channel)
    switch(alone, "paused")
    assert sweep() == 0
    other = waiting(channel=channel, paused=True)
    assert sweep() == 0
    switch(alone, "retired")
    assert sum(sweeps.retired()) == 2
    assert Delivery.objects.filter(consumer=other, state="queued").count() == 2
    switch(other, "retired")
    assert sum(sweeps.retired()) == 2
    assert Delivery.objects.filter(consumer=other, state="cancelled").count() == 2
    assert_counters_are_true()


def test_a_claim_skips_messages_reassigned_meanwhile() -> None:
    channel = make_channel(kind="queue")
    a, b = (waiting(channel=channel, client_id=name) for name in "ab")
    bring(a, b"x", b"y")
    mine = Delivery.objects.get(consumer=a)
    wants = [ClaimRequest(one.id, 1, 10_000, owner=1) for one in (a, b)]
    Delivery.objects.filter(id=mine.id).update(consumer=b)
    assert claim.claim_chosen([mine.id], wants[0], now=clock.now(), slot=0).rows == []


def test_the_kind_of_a_channel_cannot_change_once_it_has_messages() -> None:
    api = Api(scopes=["admin"])
    assert api.call("PUT", "/channels/chores", {"kind": "queue"}).status_code == 201
    assert api.patch("/channels/chores", {"kind": "topic"}).status_code == 200
    assert api.patch("/channels/chores", {"kind": "queue"}).status_code == 200
    # A service that registers at each start without a kind does not turn it into a topic.
    assert api.call("PUT", "/channels/chores", {}).json()["kind"] == "queue"
    ConsumerFactory.create(channel=Channel.objects.get(slug="chores"), pull=True)
    ConsumerFactory.create(channel=Channel.objects.get(slug="chores"), pull=True)
    answer = api.post("/channels/chores/messages", b"1")
    assert answer.json()["matched_consumers"] == 1
    answer = api.patch("/channels/chores", {"kind": "topic"})
    assert problem(answer) == (422, "invalid_fields", "kind")
    assert api.patch("/channels/chores", {"kind": "queue", "paused": True}).status_code == 200


def test_messages_of_a_retired_consumer_are_reassigned() -> None:
    channel = make_channel(kind="queue")
    leaving, staying = (waiting(channel=channel, client_id=name) for name in ("leaving", "staying"))
    bring(leaving, *[str(n).encode() for n in range(6)])
    api = Api(scopes=["admin"])
    assert api.delete(Worker(leaving).path).status_code == 204
    while cancel.cancel_retired(clock.now(), 0, 100):
        pass
    answer = api.post(f"{Worker(staying).path}/backfill", {"dry_run": True})
    assert answer.json()["matched_count"] == 3
    worker = Worker(staying)
    worker.say("ack", *(one["lease"] for one in worker.receive()))
    answer = api.post(f"{Worker(staying).path}/backfill", {"dry_run": True})
    assert answer.json()["matched_count"] == 3  # without those that it already had
