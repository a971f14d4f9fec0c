"""The fan-out, and what a pump claims of it directly."""

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from pytest_django.fixtures import DjangoAssertNumQueries

from channels_app import failpoints
from channels_app.database import clock
from channels_app.ingest import accept
from channels_app.ingest.accept import Publication
from channels_app.models import ConfigVersion, Consumer, Message
from channels_app.registry.cache import config_cache
from delivery import replay
from delivery.core.lifecycle import ClaimAllowance, ClaimedDelivery, DirectClaim
from delivery.models import Attempt, Counter, Delivery
from delivery.pump.pump import Pump
from delivery.queue import claim, fanout, high_watermark, release
from delivery.queue.claim import ClaimRequest
from delivery.queue.waiting_messages import FEW
from delivery.replay import restore
from delivery.serializers.filters import BackfillFilterSerializer
from delivery.transport import payloads
from tests.support import clocks, pumping, restoring
from tests.support.factories import MessageFactory
from tests.support.principals import acting
from tests.support.pumping import (
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_until,
    view_of,
)
from tests.support.receiver import Receiver
from tests.support.threads import in_thread

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"
LEASE_MS = 30_000


@pytest.fixture
def consumer() -> Consumer:
    return make_consumer(make_channel(), NOWHERE)


def claimer(limit: int = 100, *, only: int | None = None, **values: Any) -> DirectClaim:
    """Return a direct claim of up to ``limit`` deliveries of each consumer, or only of one."""

    def leave(counts: Mapping[int, int]) -> dict[int, ClaimAllowance]:
        return {key: ClaimAllowance(limit, LEASE_MS) for key in counts if only in (None, key)}

    return DirectClaim(owner=7, now=values.get("now") or clock.now(), allow=leave)


def test_a_delivery_claimed_in_fan_out_equals_one_claimed_later() -> None:
    rows: list[dict[str, Any]] = []
    claims: list[ClaimedDelivery] = []
    now = clock.now()
    for by_claim in (True, False):
        consumer = make_consumer(make_channel(), NOWHERE)
        publish(
            consumer.channel,
            b"x",
            priority=7,
            event_type="order.created",
            ordering_key="a",
            expires_at=now + timedelta(hours=1),
        )
        later = clock.now()
        if by_claim:
            fanout.fan_out(10, slot=0)
            want = ClaimRequest(consumer.id, 10, LEASE_MS, owner=7)
            claims += claim.claim([want], now=later, slot=0).rows
        else:
            claims += fanout.fan_out(10, 0, claimer(now=later)).claimed
        row = dict(Delivery.objects.filter(consumer=consumer).values().get())
        assert row["due_at"] == later + timedelta(milliseconds=LEASE_MS)
        assert claims[-1].lease_until == row["due_at"]
        assert claims[-1].accepted_at == row["accepted_at"]
        assert claims[-1].id == row["id"]
        rows.append(row)
        assert Counter.totals() == pumping.recounted()
    own = {"id", "message_id", "consumer_id", "channel_id", "due_at", "accepted_at"}
    claimed, new_deliveries = ({name: row[name] for name in row if name not in own} for row in rows)
    assert new_deliveries == claimed
    own |= {"lease_until"}
    claimed, new_deliveries = (
        {k: v for k, v in row._asdict().items() if k not in own} for row in claims
    )
    assert new_deliveries == claimed


def test_fan_out_claims_the_highest_priority_and_queues_the_rest(consumer: Consumer) -> None:
    for priority in (1, 9, 4, 9):
        publish(consumer.channel, b"x", priority=priority)
    made = fanout.fan_out(10, 0, claimer(limit=3))
    assert [row.priority for row in made.claimed] == [9, 9, 4]
    assert made.claimed[0].id < made.claimed[1].id
    assert list(Delivery.objects.filter(state="queued").values_list("priority", flat=True)) == [1]
    assert set(made.due) == {consumer.id}
    assert Counter.totals() == pumping.recounted()


def test_deliveries_not_due_or_expired_are_not_claimed_in_fan_out(consumer: Consumer) -> None:
    now = clock.now()
    publish(consumer.channel, b"later", due_at=now + timedelta(minutes=1))
    publish(consumer.channel, b"old", expires_at=now - timedelta(seconds=1))
    made = fanout.fan_out(10, 0, claimer())
    assert made.claimed == []
    assert Counter.totals()["queued"] == 2


def test_a_message_is_due_by_the_database_clock(consumer: Consumer) -> None:
    publish(consumer.channel, b"x")
    behind = clock.now() - timedelta(seconds=5)
    assert len(fanout.fan_out(10, 0, claimer(now=behind)).claimed) == 1


def test_fan_out_claims_only_within_the_allowance() -> None:
    channel = make_channel()
    mine, other = make_consumer(channel, NOWHERE), make_consumer(channel, NOWHERE)
    publish(channel, b"1", b"2")
    made = fanout.fan_out(10, 0, claimer(only=mine.id))
    assert {row.consumer_id for row in made.claimed} == {mine.id}
    assert set(made.due) == {other.id}
    assert set(other.deliveries.values_list("state", "lease_owner")) == {("queued", None)}
    assert Message.objects.filter(state="dispatched", consumer_count=2).count() == 2


def test_message_without_wakeup_is_found_by_polling(consumer: Consumer) -> None:
    ids = publish(consumer.channel, *[b"x"] * 5)
    made = fanout.fan_out(10, 0, claimer(), notified=ids[3:])
    assert [row.message_id for row in made.claimed] == ids
    assert not made.more


def test_oldest_messages_are_fanned_out_first_despite_wakeups(consumer: Consumer) -> None:
    ids = publish(consumer.channel, *[b"x"] * 5)
    made = fanout.fan_out(2, 0, claimer(), notified=[ids[4], ids[1]])
    assert [row.message_id for row in made.claimed] == ids[:2]
    assert made.more


def test_a_wakeup_for_a_fanned_out_message_is_ignored(consumer: Consumer) -> None:
    done, later = publish(consumer.channel, b"1", b"2")
    fanout.fan_out(1, 0)
    made = fanout.fan_out(10, 0, claimer(), notified=[done, later])
    assert [row.message_id for row in made.claimed] == [later]
    assert not made.more
    assert fanout.fan_out(10, 0, notified=[done, later, 77]) == fanout.FanoutResult()


def test_a_consumer_registered_before_a_message_gets_it_despite_a_stale_cache(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fan-out reads the configuration version after locking and refreshes an older cache."""
    publish(consumer.channel, b"1")
    fanout.fan_out(10, 0)
    view = view_of(consumer.channel)
    # As on another host: changes are not announced, and the last check was a moment ago.
    monkeypatch.setattr(config_cache, "_is_fresh", lambda *_: True)
    monkeypatch.setattr(ConfigVersion, "current", lambda: pytest.fail("asked once more"))
    second = make_consumer(consumer.channel, NOWHERE)
    notified = [it.message_id for it in accept.accept(view, None, [Publication(b"2")])]
    made = fanout.fan_out(10, 0, claimer(), notified=notified)
    assert {row.consumer_id for row in made.claimed} == {consumer.id, second.id}


@pytest.mark.mariadb
def test_messages_of_a_wakeup_are_fanned_out_in_one_round_trip(
    consumer: Consumer, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    publish(consumer.channel, b"1")
    fanout.fan_out(10, 0)
    notified = publish(consumer.channel, b"2")
    with django_assert_num_queries(2):  # BEGIN and COMMIT are sent with them
        made = fanout.fan_out(10, 0, claimer(), notified, payloads.select_payloads)
    assert [row[0] for row in made.payload_rows] == notified
    assert len(made.claimed) == 1


def test_fan_out_of_few_messages_reads_their_payloads_in_the_same_query(consumer: Consumer) -> None:
    notified = publish(consumer.channel, *[b"x"] * (FEW + 1))
    assert not fanout.fan_out(10, 0, claimer(), notified, payloads.select_payloads).payload_rows
    notified = publish(consumer.channel, *[b"x"] * FEW)
    made = fanout.fan_out(10, 0, claimer(), notified, payloads.select_payloads)
    assert {row[0] for row in made.payload_rows} == set(notified)


@pytest.mark.mariadb
def test_fan_outs_side_by_side_do_not_wait_for_each_other(consumer: Consumer) -> None:
    publish(consumer.channel, *[b"x"] * 30)
    counts: list[int] = []

    def other() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET innodb_lock_wait_timeout = 1")
        counts.extend(fanout.fan_out(10, slot=1).message_count for _ in range(3))
        connection.close()

    fanout.fan_out(5, slot=1)  # so that both slots have their counters
    with transaction.atomic():
        counts.append(fanout.fan_out(10, slot=0).message_count)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert counts == [10, 10, 5, 0]
    assert Delivery.objects.count() == 30
    assert Counter.totals() == pumping.recounted()


@pytest.mark.trap("rows that commit late are skipped")
@pytest.mark.parametrize("made_by", ["in_fanout", "in_replay", "in_restore"])
def test_the_high_watermark_waits_for_transactions_that_create_deliveries(
    made_by: str, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that takes ten seconds, seen by a reader of what is committed."""
    ids, now = publish(consumer.channel, b"x"), clock.now()
    work: Callable[[], object] = partial(fanout.fan_out, 10, slot=0)
    if made_by != "in_fanout":
        work()
        rows = restoring.take_away(ids)
    if made_by == "in_restore":
        restoring.bring(consumer, rows)
        work = partial(list, restore.run_each(now, slot=0))
    elif made_by == "in_replay":
        MessageFactory.create(channel=consumer.channel, dispatched=True, accepted_at=now)
        alice, values = acting("user:alice"), BackfillFilterSerializer().read({})
        wanted = replay.backfill(values, consumer, alice, now=now)
        replay.create(wanted, [consumer], alice, now=now)
        work = partial(replay.run_due, now, slot=0)
    begun, committing = threading.Event(), threading.Event()

    def reach(point: str) -> None:
        if point == made_by:
            begun.set()
            assert committing.wait(60)

    monkeypatch.setattr(failpoints, "reach", reach)
    thread = in_thread(work)
    try:
        assert begun.wait(60)
        clocks.forward(monkeypatch)(10)
        bound = high_watermark.of(consumer)
    finally:
        committing.set()
        thread.join()
    delivery = Delivery.objects.get(consumer=consumer)
    assert delivery.id >= bound
    assert delivery.id < high_watermark.of(consumer)


class Killed(BaseException):
    """Simulates that the process was killed."""


def test_deliveries_claimed_in_fan_out_survive_a_killed_pump(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))
    publish(channel, *[b"x"] * 5)

    def reach(point: str) -> None:
        if point == "after_claimed_fanout":
            raise Killed

    with pumping.pumping() as pump:
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "reach", reach)
            with pytest.raises(Killed):
                pump_until(pump, all_finished)
        held = set(Delivery.objects.values_list("state", "attempt_count", "lease_owner"))
        dead = pump.held.generation
        assert held == {("in_flight", 1, dead)}
        assert Counter.totals() == pumping.recounted()
        assert receiver.requests() == []
        pump.claimed.clear()  # the killed pump's memory is gone
    with pumping.pumping() as pump:
        assert release.release_owner(dead, now=clock.now(), slot=0) == 5
        pump_until(pump, all_finished)
    assert len(receiver.requests()) == 5
    outcomes = sorted(Attempt.objects.values_list("number", "outcome"))
    assert outcomes == [(1, "interrupted")] * 5 + [(2, "delivered")] * 5
    assert set(Delivery.objects.values_list("state", "failure_count")) == {("delivered", 0)}


def test_new_messages_do_not_overtake_waiting_higher_priorities(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/slow?ms=100"), max_in_flight=1)
    publish(channel, *[b"high"] * 3, priority=9)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: bool(pump.open))
        while pump.open:
            pump._wait(0.05)
            pump._record()
        publish(channel, b"low", priority=1)
        pump_until(pump, all_finished)
    assert [request.body for request in receiver.requests()] == [b"high"] * 3 + [b"low"]


def test_new_messages_of_an_idle_consumer_are_claimed_once(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = make_channel()
    for path in ("/a", "/b"):
        make_consumer(channel, receiver.url(path))

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a claim")

    monkeypatch.setattr(claim, "claim", refuse)
    with pumping.pumping() as pump:
        for count in (10, 20, 30):
            publish(channel, *[b"x"] * 5)
            pump_until(pump, lambda: Counter.totals()["delivered"] == count)  # noqa: B023
    assert len(receiver.requests()) == 30
    assert Counter.totals() == pumping.recounted()


def test_two_pumps_get_their_share_and_no_delivery_is_taken_twice(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: dict[int, set[int]] = {}
    keep_claimed = Pump._keep_claimed

    def spy(pump: Pump, rows: list[ClaimedDelivery], *more: Any) -> Any:
        taken.setdefault(pump.held.generation, set()).update(row.id for row in rows)
        return keep_claimed(pump, rows, *more)

    monkeypatch.setattr(Pump, "_keep_claimed", spy)
    channel = make_channel()
    with pumping.pumping() as one, pumping.pumping() as other:
        consumers = [make_consumer(channel, receiver.url("/0"))]
        # The pump of a consumer follows from its id: add consumers until both pumps have one.
        while len(consumers) < 4 or not (one.assignment.queues and other.assignment.queues):
            consumers.append(make_consumer(channel, receiver.url(f"/{len(consumers)}")))
            for pump in (one, other):
                pump.assignment.refresh()
        publish(channel, *[b"x"] * 10)
        for _ in range(400):
            if all_finished():
                break
            for pump in (one, other):
                pump.next_poll = 0.0
                pump.accepted_hint = True
                pump.round()
    shares = {key: len(rows) for key, rows in taken.items()}
    assert shares == {
        pump.held.generation: 10 * len(pump.assignment.queues) for pump in (one, other)
    }
    assert sum(shares.values()) == 10 * len(consumers) == len(receiver.requests())
    assert len(set().union(*taken.values())) == 10 * len(consumers)
    assert set(Delivery.objects.values_list("state", "attempt_count")) == {("delivered", 1)}
    assert Counter.totals() == pumping.recounted()
