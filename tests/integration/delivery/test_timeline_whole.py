"""The timeline from the outside: permissions, leases, body sizes and many messages."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from channels_app.core import ids, times
from channels_app.database import clock
from channels_app.ingest import accept
from channels_app.ingest.accept import Publication
from channels_app.models import ApiKey, MessageBody
from delivery import replay
from delivery.models import Attempt, Delivery
from delivery.queue import cancel, claim, fanout, reschedule
from delivery.queue.claim import ClaimRequest
from tests.support import pumping
from tests.support.calling import Api, problem
from tests.support.counts import assert_counters_are_true
from tests.support.factories import ApiKeyFactory, ProducerFactory, TeamFactory
from tests.support.principals import acting
from tests.support.pulling import Worker, bring, lapse, waiting
from tests.support.pumping import (
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_rounds,
    pump_until,
    view_of,
)
from tests.support.receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)
ASKER = acting("test")
HOUR = timedelta(hours=1)


@pytest.mark.seed("S4-02")
def test_a_consumer_registered_later_gets_a_scheduled_message_on_time(receiver: Receiver) -> None:
    """The producer is gone; the new consumer requests a backfill of what it missed."""
    channel = make_channel()
    at = clock.now() + timedelta(seconds=1)
    (message_id,) = publish(channel, b"later", due_at=at)
    admin = Api(admin=True)
    with pumping.pumping() as pump:
        pump_rounds(pump, 1)
        consumer = make_consumer(channel, receiver.url("/ok"))
        path = f"/channels/{channel.slug}/consumers/{consumer.client_id}/backfill"
        assert admin.post(path, {}).status_code == 202
        replay.run_due(clock.now(), 0)
        assert Delivery.objects.exists()
        pump_until(pump, all_finished, seconds=30)
    (heard,) = receiver.requests()
    assert heard.header("webhook-id") == ids.to_public(ids.MESSAGE, message_id)
    assert Attempt.objects.get().started_at >= at


@pytest.mark.seed("S4-25")
def test_a_lease_delays_a_message_until_it_ends() -> None:
    consumer = waiting(b"x")
    reader = Api(admin=True)
    (one,) = Worker(consumer).receive(lease_s=60)

    def shown() -> dict[str, Any]:
        (delivery,) = reader.get(f"/messages/{one['id']}").json()["deliveries"]
        return dict(delivery)

    held = shown()
    assert (held["state"], held["attempt_count"]) == ("In-flight", 1)
    assert (held["held_until"], held["next_attempt_at"]) == (one["lease_expires_at"], None)
    assert times.instant(held["held_until"]) > clock.now() + timedelta(seconds=50)
    assert Worker(consumer).receive() == []
    lapse(consumer)
    (again,) = Worker(consumer).receive()
    assert (again["id"], shown()["attempt_count"]) == (one["id"], 2)
    Worker(consumer).say("ack", again["lease"])
    assert shown()["held_until"] is None
    assert_counters_are_true()


@pytest.mark.seed("S4-27")
def test_a_past_scheduled_message_can_be_replayed(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))
    publish(channel, b"x", due_at=clock.now() + timedelta(milliseconds=300))
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
        row = Delivery.objects.get()
        path = f"/deliveries/{ids.to_public(ids.DELIVERY, row.id)}/replay"
        assert Api(admin=True).post(path).status_code == 202
        pump_until(pump, all_finished)
    first, second = receiver.requests()
    assert first.header("webhook-id") == second.header("webhook-id")
    assert (first.body, second.body) == (b"x", b"x")


@pytest.mark.slow("makes a crowd of messages")
@pytest.mark.seed("S4-40")
def test_many_messages_due_at_one_time_do_not_delay_others(receiver: Receiver) -> None:
    busy, quiet = make_channel(), make_channel()
    make_consumer(busy, receiver.url("/crowd"))
    make_consumer(quiet, receiver.url("/single"))
    at = clock.now() + timedelta(seconds=2)
    publish(busy, *[b"x"] * 500, due_at=at)
    publish(quiet, b"y", due_at=at + timedelta(milliseconds=10))
    with pumping.pumping() as pump:
        pump_until(pump, lambda: Delivery.objects.count() == 501, seconds=60)
        pump_until(pump, all_finished, seconds=120)
    heard = [request.path for request in receiver.requests()]
    assert len(heard) == 501
    assert heard.index("/single") < 400, "it waited until the crowd was through"
    assert min(Attempt.objects.values_list("started_at", flat=True)) >= at


@pytest.mark.seed("S4-43")
def test_claims_moves_and_cancellations_read_no_bodies() -> None:
    """Their cost therefore cannot depend on the size of a body."""
    channel = make_channel()
    consumer = make_consumer(channel, "http://127.0.0.1:9/")
    waiting_ids = bring(consumer, b"x" * 1_000_000, b"y", b"z", due_at=clock.now() + HOUR)
    bring(consumer, b"x" * 1_000_000)
    now = clock.now()
    with CaptureQueriesContext(connection) as seen:
        claim.claim([ClaimRequest(consumer.id, 10, 1000, owner=1)], now=now, slot=0)
        reschedule.reschedule(waiting_ids[0], ASKER, now=now, due_at=now + 2 * HOUR)
        cancel.cancel_message(waiting_ids[0], ASKER, now=now)
    sql = [query["sql"] for query in seen]
    assert len(sql) > 5
    assert not [one for one in sql if MessageBody._meta.db_table in one]


# -- permissions -------------------------------------------------------------------------------

OWNER, RIVAL, STRANGER = "its producer", "a producer of the same team", "another team's producer"
HOLDER, NEIGHBOUR = "the worker that holds it", "another team's worker"
OK, MAY_NOT, NONE = 200, 403, 404
MATRIX = {
    #           read     move     cancel
    OWNER: (OK, OK, OK),
    RIVAL: (OK, MAY_NOT, MAY_NOT),
    STRANGER: (NONE, NONE, NONE),
    HOLDER: (MAY_NOT, MAY_NOT, MAY_NOT),
    NEIGHBOUR: (MAY_NOT, MAY_NOT, MAY_NOT),
}


@pytest.mark.seed("S4-R2")
def test_only_its_producer_moves_it_and_only_its_holder_settles_it() -> None:
    makers, claimers = TeamFactory.create(), TeamFactory.create()
    producer = ProducerFactory.create(team=makers)
    scopes: dict[str, Any] = {"scopes": ["publish", "read"]}
    keys: dict[str, ApiKey] = {
        OWNER: ApiKeyFactory.create(producer=producer, **scopes),
        RIVAL: ApiKeyFactory.create(producer=ProducerFactory.create(team=makers), **scopes),
        STRANGER: ApiKeyFactory.create(
            producer=ProducerFactory.create(team=TeamFactory.create()), **scopes
        ),
        HOLDER: ApiKeyFactory.create(scopes=["receive"], team=claimers, producer=None),
        NEIGHBOUR: ApiKeyFactory.create(
            scopes=["receive"], team=TeamFactory.create(), producer=None
        ),
    }
    consumer = waiting(team=claimers, channel=make_channel(exposure="external"))
    calls: tuple[Callable[[Api, str], Any], ...] = (
        lambda api, path: api.get(path),
        lambda api, path: api.patch(path, {"delay_ms": 0}),
        lambda api, path: api.delete(path),
    )
    for who, statuses in MATRIX.items():
        for call, status in zip(calls, statuses, strict=True):
            items = [Publication(body=b"x")]
            (stored,) = accept.accept(view_of(consumer.channel), producer.id, items)
            fanout.fan_out(1000, slot=0)
            path = f"/messages/{ids.to_public(ids.MESSAGE, stored.message_id)}"
            answer = call(Api(keys[who]), path)
            assert answer.status_code == status, (who, answer.content)


@pytest.mark.seed("S4-R2", "S4-23")
def test_only_the_worker_ends_its_lease_and_no_move_or_cancellation_does() -> None:
    team = TeamFactory.create()
    consumer = waiting(b"x", team=team, channel=make_channel(exposure="external"))
    holder = Worker(consumer, Api(ApiKeyFactory.create(scopes=["receive"], team=team)))
    other = Worker(consumer, Api(ApiKeyFactory.create(scopes=["receive"], producer=None)))
    (one,) = holder.receive(lease_s=60)
    for what in ("extend", "nack", "release", "ack"):
        assert other.say(what, one["lease"]) == ([], {one["lease"]: "unknown"})
    admin = Api(admin=True)
    for answer in (
        admin.patch(f"/messages/{one['id']}", {"delay_ms": 0}),
        admin.delete(f"/messages/{one['id']}"),
    ):
        assert problem(answer)[:2] == (409, "in_flight")
        assert one["lease_expires_at"] in answer.json()["detail"]
    row = Delivery.objects.get()
    assert (row.state, row.message.version) == ("in_flight", 1)
    for what in ("extend", "ack"):
        assert holder.say(what, one["lease"])[0] == [one["lease"]]
