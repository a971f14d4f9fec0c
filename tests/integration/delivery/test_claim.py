"""Claims: in index order, under a lease, fenced, and without ineligible deliveries."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.db import DatabaseError, connection

from channels_app.database import clock
from channels_app.models import Consumer, new_id
from delivery.core.lifecycle import (
    FREE_ATTEMPTS,
    ClaimedDelivery,
    DeliveryState,
    Reason,
    Transition,
)
from delivery.core.outcome import Outcome
from delivery.core.recipients import ALONE, LEVELS, ConsumerShare
from delivery.models import Attempt, Counter, Delivery
from delivery.queue import claim, fanout, settle
from delivery.queue.claim import ClaimRequest
from delivery.queue.settle import Result
from tests.integration.indexes.judge import explained
from tests.support import pumping
from tests.support.pumping import make_channel, make_consumer, publish
from tests.support.threads import at_once

pytestmark = pytest.mark.django_db(transaction=True)
DELIVERED = Transition(DeliveryState.DELIVERED, Reason.DELIVERED, None, False)
NOWHERE = "http://127.0.0.1:9/"


@pytest.fixture
def consumer() -> Consumer:
    return make_consumer(make_channel(), NOWHERE)


def queue(consumer: Consumer, count: int, **options: object) -> None:
    publish(consumer.channel, *[b"x"] * count, **options)
    fanout.fan_out(1000, slot=0)


def take(consumer: Consumer, limit: int = 100, **options: object) -> claim.Claim:
    owner = int(str(options.get("owner", 1)))
    request = ClaimRequest(
        consumer.id, limit, 30_000, owner, oldest_first=bool(options.get("oldest"))
    )
    now = options.get("now") or clock.now()
    assert isinstance(now, datetime)
    return claim.claim([request], now=now, slot=0)


def result(row: ClaimedDelivery) -> Result:
    return Result(row, DELIVERED, Outcome.DELIVERED, datetime.now(UTC), "test", status=200)


def close(row: ClaimedDelivery) -> int:
    return settle.settle([result(row)], now=clock.now(), slot=0)


def test_a_claim_leases_the_row_and_counts_the_attempt(consumer: Consumer) -> None:
    queue(consumer, 3)
    now = clock.now()
    taken = take(consumer, now=now)
    assert len(taken.rows) == 3
    assert {row.attempt for row in taken.rows} == {1}
    row = Delivery.objects.first()
    assert row is not None
    assert (row.state, row.attempt_count, row.lease_owner) == ("in_flight", 1, 1)
    assert row.due_at == now + timedelta(seconds=30)
    assert take(consumer).rows == []
    assert Counter.totals() == pumping.recounted()


@pytest.mark.parametrize("share", [ALONE, ConsumerShare(0, (1, 2)), ConsumerShare(1, (1, 2))])
def test_an_avoided_delivery_is_claimed_only_if_no_other_is_due(
    consumer: Consumer, share: ConsumerShare
) -> None:
    queue(consumer, 1, priority=9)
    queue(consumer, 1)
    urgent, normal = Delivery.objects.order_by("-priority").values_list("id", flat=True)
    request = ClaimRequest(consumer.id, 1, 30_000, 1, share=share, avoided=urgent)
    made = [claim.claim([request], now=clock.now(), slot=0) for _ in range(2)]
    assert [row.id for each in made for row in each.rows] == [normal, urgent]
    assert made[0].still_due.keys() == {consumer.id}


@pytest.mark.trap("a lease shorter than the timeout")
def test_an_expired_lease_is_reclaimed_and_the_late_result_is_refused(consumer: Consumer) -> None:
    queue(consumer, 1)
    (late,) = take(consumer).rows
    later = clock.now() + timedelta(seconds=31)
    (again,) = take(consumer, now=later, owner=2).rows
    assert again.attempt == 2
    assert close(late) == 0
    assert Delivery.objects.get().state == "in_flight"
    assert close(again) == 1
    assert close(again) == 0
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.failure_count) == ("delivered", 0)
    outcomes = dict(Attempt.objects.values_list("number", "outcome"))
    assert outcomes == {1: "lease_expired", 2: "delivered"}
    assert Counter.totals() == pumping.recounted()


def test_an_outdated_result_changes_nothing_and_does_not_block_others(consumer: Consumer) -> None:
    queue(consumer, 3)
    late, first, second = take(consumer).rows
    Delivery.objects.filter(id=late.id).update(due_at=clock.now() - timedelta(seconds=1))
    (again,) = take(consumer, owner=2).rows
    now = clock.now()
    rows = [result(row) for row in (first, late, second, second)]
    assert settle.settle(rows, now=now, slot=0) == 2
    states = dict(Delivery.objects.values_list("id", "state"))
    assert states == {first.id: "delivered", second.id: "delivered", late.id: "in_flight"}
    assert Attempt.objects.filter(outcome="delivered").count() == 2
    assert Counter.totals() == pumping.recounted()
    assert close(again) == 1


def test_a_deleted_delivery_leaves_no_attempt_and_no_count(consumer: Consumer) -> None:
    queue(consumer, 2)
    gone, kept = take(consumer).rows
    Delivery.objects.filter(id=gone.id).delete()
    before = Counter.totals()
    rows = [result(gone), result(kept)]
    assert settle.settle(rows, now=clock.now(), slot=0) == 1
    assert list(Attempt.objects.values_list("delivery_id", flat=True)) == [kept.id]
    assert Counter.totals() == {**before, "in_flight": 1, "delivered": 1}


@pytest.mark.trap("poison rows starve others")
def test_a_delivery_that_keeps_killing_its_worker_becomes_dead(consumer: Consumer) -> None:
    queue(consumer, 1)
    now = clock.now()
    for round_number in range(FREE_ATTEMPTS + 1):
        taken = take(consumer, now=now + timedelta(minutes=round_number))
        assert len(taken.rows) == 1
    assert take(consumer, now=now + timedelta(hours=2)).rows == []
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.outcome) == ("dead", "interrupted")
    assert Counter.totals() == pumping.recounted()


@pytest.mark.trap("dequeued before it is recorded")
def test_a_failed_transaction_changes_neither_rows_nor_counters(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue(consumer, 3)
    rows = take(consumer).rows

    broken = [("UPDATE no_such_table SET count = 1", list[object]())]
    monkeypatch.setattr(Counter, "adding", lambda *changes: broken)
    with pytest.raises(DatabaseError):
        settle.settle([result(row) for row in rows], now=clock.now(), slot=0)
    assert set(Delivery.objects.values_list("state", flat=True)) == {"in_flight"}
    assert not Attempt.objects.exists()


def test_a_delivery_id_collision_is_replaced(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(consumer.channel, b"1", b"2")
    fanout.fan_out(1, slot=0)
    made = iter([Delivery.objects.get().id])  # exists already; then new ones

    monkeypatch.setattr(fanout, "new_id", lambda: next(made, 0) or new_id())
    fanout.fan_out(10, slot=0)
    assert Delivery.objects.count() == 2


@pytest.mark.trap("two workers claim the same row")
@pytest.mark.mariadb
def test_two_claimers_share_without_waiting(consumer: Consumer) -> None:
    queue(consumer, 200)
    shares: list[list[int]] = []

    def worker(owner: int) -> None:
        mine: list[int] = []
        while rows := take(consumer, limit=20, owner=owner).rows:
            mine += [row.id for row in rows]
        shares.append(mine)

    at_once(partial(worker, 1), partial(worker, 2))
    assert not set(shares[0]) & set(shares[1])
    assert len(shares[0]) + len(shares[1]) <= 200
    assert Delivery.objects.filter(attempt_count__gt=1).count() == 0
    assert Counter.totals() == pumping.recounted()


@pytest.mark.trap("two workers claim the same row")
@pytest.mark.mariadb
def test_the_database_serves_each_claim_in_index_order(consumer: Consumer) -> None:
    queue(consumer, 300)
    rows = [row for batch in range(3) for row in take(consumer, limit=90).rows]
    settle.settle([result(row) for row in rows], now=clock.now(), slot=0)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE TABLE {claim.TABLE}")
        sql, values = claim.candidates_sql(
            [ClaimRequest(consumer.id, 10, 1000, owner=1)], clock.now()
        )
    plan = explained("EXPLAIN " + sql, values)
    reads = [row for row in plan if row["table"] == claim.TABLE]
    assert len(reads) == len(LEVELS)
    assert {row["key"] for row in reads} == {"delivery_claim"}
    assert {row["type"] for row in reads} <= {"range", "ref"}
    assert not any("filesort" in (row["Extra"] or "") for row in reads)
    # The ranges are read one after the other, without a temporary table.
    assert not any((row["table"] or "").startswith("<derived") for row in plan)
