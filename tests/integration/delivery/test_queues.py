"""Channels of kind queue: each message goes to exactly one of the consumers."""

from collections import Counter as Tally
from dataclasses import replace
from datetime import timedelta

import pytest

from channels_app import clock
from channels_app.models import Channel
from delivery import conf as conf_module
from delivery.models import ConsumerHealth, Counter, Delivery
from delivery.runtime import roster
from delivery.steps import cancel, dispatch
from tests.support.books import assert_counters_are_true
from tests.support.calling import Api, problem
from tests.support.factories import ConsumerFactory
from tests.support.pulling import Worker, bring, waiting
from tests.support.pumping import make_channel, make_consumer, publish, pump_until, pumping
from tests.support.receiver import Receiver

pytestmark = pytest.mark.django_db


def dealt(channel: Channel) -> Tally[str]:
    rows = Delivery.objects.filter(channel=channel)
    return Tally(rows.values_list("consumer__client_id", flat=True))


@pytest.mark.seed("S2-04")
@pytest.mark.seed("S2-05", "S4-38", "S1-03")
@pytest.mark.parametrize(("kind", "each"), [("queue", 100), ("topic", 300)])
def test_three_consumers_and_300_messages(receiver: Receiver, kind: str, each: int) -> None:
    channel = make_channel(kind=kind)
    for name in "abc":
        make_consumer(channel, receiver.url(f"/{name}"), client_id=name)
    publish(channel, *[b"x"] * 300)
    with pumping() as pump:
        pump_until(pump, lambda: len(receiver.requests()) == 3 * each, seconds=60)
        pump_until(pump, lambda: Counter.totals()["delivered"] == 3 * each)
    assert dealt(channel) == dict.fromkeys("abc", each)
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


def test_an_idle_consumer_gets_what_a_slow_one_has_no_time_for() -> None:
    channel = make_channel(kind="queue")
    slow, quick = (waiting(channel=channel, client_id=name) for name in ("slow", "quick"))
    for _ in range(10):
        bring(slow, b"x")
        worker = Worker(quick)
        worker.say("ack", *(one["lease"] for one in worker.receive()))
    assert dealt(channel) == {"slow": 1, "quick": 9}


@pytest.mark.seed("S4-24")
def test_one_that_fails_is_left_out_until_it_is_tried_again(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = replace(conf_module.conf(), breaker_failures=3, breaker_base_s=60.0)
    monkeypatch.setattr(roster, "conf", lambda: soon)
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
    dispatch.dispatch(100, slot=0)
    share = dealt(channel)
    assert (sum(share.values()), share["c"]) == (32, had["c"])
    ConsumerHealth.objects.update(next_probe_at=clock.now())
    publish(channel, *[b"x"] * 90)
    dispatch.dispatch(100, slot=0)
    assert dealt(channel)["c"] > had["c"], "it is not tried again"


def test_what_it_is_cannot_be_changed_once_it_has_messages() -> None:
    api = Api(scopes=["admin"])
    assert api.call("PUT", "/channels/chores", {"kind": "queue"}).status_code == 201
    assert api.patch("/channels/chores", {"kind": "topic"}).status_code == 200
    assert api.patch("/channels/chores", {"kind": "queue"}).status_code == 200
    # A service that says at each start what it needs does not turn it into a topic.
    assert api.call("PUT", "/channels/chores", {}).json()["kind"] == "queue"
    ConsumerFactory.create(channel=Channel.objects.get(slug="chores"), pull=True)
    ConsumerFactory.create(channel=Channel.objects.get(slug="chores"), pull=True)
    answer = api.post("/channels/chores/messages", b"1")
    assert answer.json()["matched_consumers"] == 1
    answer = api.patch("/channels/chores", {"kind": "topic"})
    assert problem(answer) == (422, "invalid_fields", "kind")
    assert api.patch("/channels/chores", {"kind": "queue", "paused": True}).status_code == 200


def test_what_waited_for_a_removed_consumer_is_brought_to_another() -> None:
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
    assert answer.json()["matched_count"] == 3  # and not what it has had itself
