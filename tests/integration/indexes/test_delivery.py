"""Query plans of the pump, repairs, replays and the operators' pages."""

from datetime import timedelta

import pytest
from django.test import Client

from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import Consumer
from delivery import replay
from delivery.acks import correlations, decisions
from delivery.core.acks import Bounds, ProviderStatus
from delivery.core.leases import Lease
from delivery.core.lifecycle import ClaimedDelivery, DeliveryState, Reason, Transition
from delivery.core.outcome import Outcome
from delivery.health import consumer_health
from delivery.maintenance import channel_erasure
from delivery.models import Delivery, OrderingKey, OrderingWaiter, Replay
from delivery.ordering import key_queue
from delivery.pull import key_affinity
from delivery.queue import (
    cancel,
    claim,
    due_times,
    fanout,
    lease_rows,
    ordering_keys,
    release,
    reschedule,
    settle,
)
from delivery.queue.claim import ClaimRequest
from delivery.queue.settle import Result
from delivery.queue.waiting_messages import MAX_SEEN
from delivery.transport import payloads
from tests.integration.indexes import judge as judge_module
from tests.integration.indexes.judge import LARGE, Judge, judging
from tests.integration.indexes.world import World, analyze, earlier
from tests.support.console import operator, page_url
from tests.support.counts import make_deliveries
from tests.support.factories import ConsumerFactory
from tests.support.principals import acting
from tests.support.pumping import publish

pytestmark = pytest.mark.django_db(transaction=True)
DELIVERED = Transition(DeliveryState.DELIVERED, Reason.DELIVERED, None, False)
LATER = Transition(DeliveryState.QUEUED, Reason.RETRY, 60.0, True)
ASKER = acting("command", "test")


@pytest.mark.slow("explains every statement of a delivery")
def test_the_path_of_a_message(large: World) -> None:
    """Fan-out, due times, claims for 1, 40 and 100 consumers, payloads, results, metrics."""
    now = clock.now()
    many = [large.consumer.id, *(_waiting(large) for _ in range(99))]
    analyze()
    with judging() as judge:
        judge.where = "fan-out"
        assert fanout.fan_out(20, slot=0).message_count == 20
        judge.where = "horizon"
        assert len(due_times.next_due(many)) == 100
        for count in (1, 40, 100):
            judge.where = f"claim of {count}"
            wants = [
                ClaimRequest(key, 5, 30_000, 7, oldest_first=key == many[0]) for key in many[:count]
            ]
            rows = claim.claim(wants, now=now + timedelta(hours=2), slot=0).rows
            assert len(rows) >= count
            judge.where = "payloads"
            payloads.load(row.message_id for row in rows)
            judge.where = f"settle of {count}"
            results = [_result(row, number) for number, row in enumerate(rows[:-2])]
            assert settle.settle(results, now=now, slot=0) == len(results)
        judge.where = "release"
        assert release.release_owner(7, now=now, slot=0) == 6
        judge.where = "health"
        consumer_health.load(many)
        judge.where = "patience"
        decisions.measured_wait_ms(large.consumer.id, Bounds(100, 60_000))
        judge.where = "callback"
        assert correlations.find(large.consumer.id, [ProviderStatus("wamid.1", ok=True)], now)
        for judge.where in ("/readyz", "/metrics"):
            assert Client().get(judge.where).status_code in {200, 503}
    judge.accept()


def test_a_fan_out_of_a_backlog(large: World) -> None:
    """By priority, then by age."""
    for priority in (0, 9):
        publish(large.consumer.channel, *[b"x"] * MAX_SEEN, priority=priority)
    analyze()
    with judging() as judge:
        judge.where = "fan-out of a backlog"
        for oldest_first in (False, True):
            assert fanout.fan_out(20, slot=0, oldest_first=oldest_first).message_count == 20
    judge.accept()


@pytest.mark.seed("S3-07", "S3-24")
def test_ordered_keys(large: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fan-out, results and a sweep beside a key with thousands behind its head."""
    now = clock.now()
    consumer = ConsumerFactory.create(ordering=True)
    many = [b"x"] * 1500
    publish(consumer.channel, *many, ordering_key="crowded")
    soon = now + timedelta(hours=1)
    publish(consumer.channel, *many, ordering_key="stale", expires_at=soon)
    for n in range(60):
        publish(consumer.channel, b"x", ordering_key=f"room {n}")
    while fanout.fan_out(500, slot=0).message_count:
        pass
    for n in range(60):
        publish(consumer.channel, b"x", ordering_key=f"room {n}")
    monkeypatch.setattr(judge_module, "LARGE", LARGE | {OrderingWaiter._meta.db_table})
    analyze()
    with judging() as judge:
        judge.where = "fan-out into keys"
        assert fanout.fan_out(100, slot=0).message_count == 60
        judge.where = "claim of heads"
        want = ClaimRequest(consumer.id, 100, 30_000, owner=7)
        made = claim.claim([want], now=now + timedelta(hours=2), slot=0)
        assert (len(made.rows), made.expired_count) == (61, 1 + key_queue.MAX_ROWS)
        rows = made.rows
        judge.where = "settle of heads"
        results = [Result(row, DELIVERED, Outcome.DELIVERED, now, "test") for row in rows]
        assert settle.settle(results, now=now, slot=0) == 61
        judge.where = "sweep"
        assert list(ordering_keys.repair(now)) == []
        judge.where = "page of a key"
        key_row = OrderingKey.objects.filter(consumer=consumer).latest("waiting_count")
        assert operator().get(page_url(key_row)).context["waiting"]
        judge.where = "cancel"
        behind = Delivery.objects.filter(consumer=consumer, state="queued").latest("id")
        cancel.cancel_one(behind.id, ASKER, now=now)
    judge.accept()


def test_receive_statements_use_indexes(large: World) -> None:
    """What receiving does beside the claim, which is the same as the pumps'."""
    now = clock.now()
    want = ClaimRequest(large.consumer.id, 20, 30_000, owner=-7)
    rows = claim.claim([want], now=now + timedelta(hours=2), slot=0).rows
    assert len(rows) > 2
    held = [
        Lease(row.id, row.consumer_id, row.attempt, 0, 0, row.accepted_at, now, "worker")
        for row in rows
    ]
    with judging() as judge:
        judge.where = "receive"
        claim.claim([want], now=now + timedelta(hours=2), slot=0)
        judge.where = "receive of shared keys"
        later = now + timedelta(hours=2)
        found = key_affinity.choose(want.consumer_id, 20, -7, [-7, -8], later, oldest_first=False)
        assert len(found) == 20
        judge.where = "what a worker holds"
        assert lease_rows.held(want.consumer_id, -7, 20, now) != []
        judge.where = "extend"
        assert lease_rows.extend({one: now + timedelta(hours=3) for one in held}) == set(held)
        judge.where = "ended"
        assert lease_rows.ended_so(held, Outcome.DELIVERED) == set()
        judge.where = "give back"
        assert release.release_lease(rows[0].id, ASKER, now=now).state == "queued"
    judge.accept()


def test_repair_statements_use_indexes(large: World) -> None:
    now = clock.now()
    dead, queued = large.rows["dead"], large.rows["queued"]
    with judging() as judge:
        judge.where = "cancel"
        cancel.cancel_one(queued[0].id, ASKER, now=now)
        cancel.cancel_message(queued[1].message_id, ASKER, now=now)
        judge.where = "reschedule"
        reschedule.reschedule(queued[2].message_id, ASKER, now=now, priority=9)
        judge.where = "replay one"
        replay.replay_one(dead[0].id, ASKER, now=now)
        judge.where = "replay by ids"
        names = [ids.to_public(ids.DELIVERY, row.id) for row in dead[1:51]]
        wanted = replay.parse({"ids": names})
        job = replay.create(wanted, replay.consumers_of(wanted, ASKER), ASKER, now=now)
        assert replay.run_slice(job, now, 100) == 50
        judge.where = "census"
        channel_erasure.count_rows(large.consumer.channel)
    # The census counts every message on purpose; it runs only before a channel is deleted.
    judge.faults = [fault for fault in judge.faults if not fault.startswith("census:")]
    judge.accept()


FORMS: list[dict[str, object]] = [
    {"outcomes": ["gone"], "states": ["dead", "delivered"]},
    {"status_codes": [503]},
    {"event_types": ["x.*"]},
    {"kind": "missing"},
    {"from": "2026-01-01T00:00:00Z", "to": "2099-01-01T00:00:00Z"},
    {"states": ["dead", "delivered"]},
    {},
]
"""Filters that match fewest rows come first, so that they find what later ones queue."""


@pytest.mark.slow("explains every statement of replays")
def test_replays(large: World) -> None:
    """Counts, samples and slices of each kind of filter."""
    names = {"channel": large.consumer.channel.slug, "consumer": large.consumer.client_id}
    Replay.objects.all().delete()
    with judging() as judge:
        for form in FORMS:
            kind = form.get("kind")
            wanted = replay.parse({} if kind else {**names, **form})
            if kind:
                wanted = replay.parse({}, kind="missing").within(*names.values())
            look_and_leap(judge, wanted)
    # A preview limits its count, and its sample may sort.
    judge.faults = [fault for fault in judge.faults if not _sorts_sample(fault)]
    judge.accept()


def look_and_leap(judge: Judge, wanted: replay.ReplayFilter) -> None:
    """Run all that a person or a program does with one filter."""
    now = clock.now()
    consumers = replay.consumers_of(wanted, ASKER)
    judge.where = "count"
    replay.count(wanted, consumers, now)
    judge.where = "sample"
    replay.sample(wanted, consumers, now)
    if wanted.kind == "missing":
        replay.message_sample(wanted, consumers, now)
    judge.where = "create"
    job = replay.create(wanted, consumers, ASKER, now=now)
    judge.where = "slice"
    for _ in range(15):
        replay.run_slice(job, now, 20)
    judge.where = "stop"
    if Replay.objects.get(id=job.id).state == "running":
        replay.cancel(job.id, ASKER, now=now)


def _sorts_sample(fault: str) -> bool:
    return fault.startswith("sample:") and ("filesort" in fault or "TEMP B-TREE" in fault)


def _waiting(large: World) -> int:
    """Add a consumer with a few due rows; return its id."""
    consumer: Consumer = ConsumerFactory.create(channel=large.others[1].channel)
    rows = make_deliveries(
        consumer,
        12,
        state="queued",
        due_at=clock.now(),
        finished_at=None,
        interruption_count=0,
        accepted_at=earlier(),
    )
    assert isinstance(rows[0], Delivery)
    return consumer.id


def _result(row: ClaimedDelivery, number: int) -> Result:
    transition, outcome = (DELIVERED, Outcome.DELIVERED) if number % 2 else (LATER, Outcome.TIMEOUT)
    return Result(row, transition, outcome, clock.now(), "test")
