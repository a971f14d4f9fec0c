"""Workers that receive and settle at the same time share transactions and nothing else."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import TypeVar

import pytest
from django.db import connection, transaction

from channels_app.database import clock
from channels_app.models import Consumer
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Delivery
from delivery.pull import leasing
from delivery.queue import claim
from delivery.queue.claim import ClaimRequest
from tests.support.broker import wait_until
from tests.support.counts import assert_counters_are_true
from tests.support.pulling import Worker, waiting

pytestmark = pytest.mark.django_db(transaction=True)
ANNA, BEN, CLEO = -1, -2, -3
LEASE_MS = 30_000
T = TypeVar("T")


def wants(consumer: Consumer, *owners: int, limit: int = 3, spare: int = 0) -> list[ClaimRequest]:
    return [
        ClaimRequest(consumer.id, limit, LEASE_MS, owner=owner, spare=spare) for owner in owners
    ]


def oldest(consumer: Consumer) -> list[int]:
    rows = Delivery.objects.filter(consumer=consumer, state="queued").order_by("due_at", "id")
    return list(rows.values_list("id", flat=True))


def test_concurrent_receive_calls_are_served_in_turn() -> None:
    consumer, other = waiting(*[b"x"] * 5), waiting(b"y")
    first = oldest(consumer)
    asked = [*wants(consumer, ANNA, BEN, CLEO), ClaimRequest(other.id, 3, 2 * LEASE_MS, owner=ANNA)]
    now = clock.now()
    taken = claim.claim(asked, now=now, slot=0)
    shares = [[row.id for row in share] for share in claim.shared(taken.rows, asked)]
    assert shares[:3] == [first[:3], first[3:], []]
    rows = {row.id: row for row in Delivery.objects.all()}
    assert [[rows[key].lease_owner for key in share] for share in shares] == [
        [ANNA] * 3,
        [BEN] * 2,
        [],
        [ANNA],
    ]
    ends = {row.consumer_id: row.due_at for row in rows.values()}
    assert ends == {
        consumer.id: now + timedelta(milliseconds=LEASE_MS),
        other.id: now + timedelta(milliseconds=2 * LEASE_MS),
    }
    assert taken.drained == {consumer.id, other.id}
    assert_counters_are_true()


@pytest.mark.mariadb
def test_locked_rows_are_skipped_for_later_ones() -> None:
    consumer = waiting(*[b"x"] * 8)
    rows = oldest(consumer)
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            list(Delivery.objects.select_for_update().filter(id__in=rows[:2]))
            held.set()
            over.wait(60)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(60)
        (want,) = wants(consumer, ANNA, spare=3)
        taken = claim.claim([want], now=clock.now(), slot=0)
    finally:
        over.set()
        holder.join(60)
    # Three were requested; two of them are locked by another session. The claim takes two later
    # ones instead, and no more.
    assert [row.id for row in taken.rows] == rows[2:5]
    assert oldest(consumer) == rows[:2] + rows[5:]
    assert taken.drained == set()
    assert_counters_are_true()


def together(*works: Callable[[], T]) -> list[T]:
    """Run each in its own thread and connection; return their results."""

    def run(work: Callable[[], T]) -> T:
        try:
            return work()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))


def test_of_two_concurrent_settlements_one_counts() -> None:
    """Calls with the winning outcome get confirmation; the others are told that it failed."""
    consumer = waiting(b"x", b"y")
    worker = Worker(consumer)
    lease, other = (leasing.lease_of(one["lease"]) for one in worker.receive())
    assert lease is not None
    assert other is not None
    words = [Outcome.DELIVERED, Outcome.REJECTED] * 4
    ends = [partial(leasing.end, [lease], word) for word in words]
    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic():
            # The first call waits for this row, and the others wait for the first call.
            Delivery.objects.filter(id=other.delivery_id).update(event_type="held")
            first = pool.submit(together, partial(leasing.end, [other], Outcome.DELIVERED))
            wait_until(lambda: leasing._group_commit._has_leader, 60, "nobody leads")
            saying = pool.submit(together, *ends)
            wait_until(
                lambda: len(leasing._group_commit._waiting) == len(words), 60, "not all have come"
            )
        said = saying.result(60)
    assert first.result() == [{other}]
    row = Delivery.objects.get(id=lease.delivery_id)
    assert [lease in done for done in said] == [word.value == row.outcome for word in words]
    assert Attempt.objects.filter(delivery=row).count() == 1
    assert_counters_are_true()


def test_each_attempt_names_its_worker() -> None:
    consumer = waiting(*[b"x"] * 4)
    worker = Worker(consumer)
    tokens = [worker.receive(max=1, worker_id=name)[0]["lease"] for name in "abcd"]
    together(*[partial(worker.say, "ack", token) for token in tokens])
    assert sorted(Attempt.objects.values_list("worker", flat=True)) == list("abcd")
    assert_counters_are_true()
