"""Retention, counter repair, sweeps, and the slots of pumps."""

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django_q.models import Schedule

from channels_app.core import ids
from channels_app.database import clock
from channels_app.ingest import accept
from channels_app.models import Channel, IdempotencyRecord, Message, MessageBody
from delivery.cluster import tasks
from delivery.maintenance import counters, retention, sweeps
from delivery.models import Attempt, Counter, Delivery, PumpSlot, Replay, SweepRun
from delivery.processes import registration, task_queue
from delivery.queue import claim, fanout
from delivery.queue.claim import ClaimRequest
from tests.support import clocks, pumping
from tests.support.counts import assert_counters_are_true, key_at, make_deliveries, make_messages
from tests.support.pumping import (
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_until,
    view_of,
)
from tests.support.receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"


def age(delivery: Delivery, days: int, state: str = "delivered") -> None:
    """Make a delivery and its message look as if accepted ``days`` days ago."""
    then = clock.now() - timedelta(days=days)
    old = ids.first_id_at(int(then.timestamp() * 1000))
    message = Message.objects.get(id=delivery.message_id)
    body = MessageBody.objects.get(message_id=message.id)
    Message.objects.filter(id=message.id).update(id=old, accepted_at=then)
    MessageBody.objects.filter(message_id=body.message_id).update(message_id=old)
    Delivery.objects.filter(id=delivery.id).update(
        id=old, message_id=old, accepted_at=then, finished_at=then, state=state, due_at=None
    )


def ripen(rows: list[Delivery], then: datetime) -> None:
    """Give deliveries the ids that they would have got at an instant."""
    for row in rows:
        Delivery.objects.filter(id=row.id).update(id=key_at(then))


@pytest.mark.seed("S4-R7")
def test_retention_deletes_only_old_finished_messages() -> None:
    channel = make_channel()
    consumer = make_consumer(channel, NOWHERE)
    publish(channel, *[b"x"] * 5)
    fanout.fan_out(100, slot=0)
    delivered, dead, old_dead, waiting, fresh = Delivery.objects.order_by("id")
    age(delivered, 31)
    age(dead, 32, "dead")
    age(old_dead, 91, "dead")
    Delivery.objects.filter(id=fresh.id).update(
        state="delivered", finished_at=clock.now(), due_at=None
    )
    counters.recount(consumer.id)
    assert sum(retention.prune(clock.now(), slot=0)) == 4  # two deliveries and their messages
    left = set(Delivery.objects.values_list("state", flat=True))
    assert left == {"dead", "queued", "delivered"}
    assert Delivery.objects.filter(id=waiting.id).exists()
    assert Message.objects.count() == MessageBody.objects.count() == 3
    assert Counter.totals() == pumping.recounted()
    assert counters.gap() == 0


@pytest.mark.trap("a clean-up that never finishes")
def test_retention_scans_each_old_message_once() -> None:
    """A dead letter's message is deleted with it; until then no run reads the message again."""
    channel = make_channel()
    consumer = make_consumer(channel, NOWHERE)
    then = clock.now() - timedelta(days=40)
    held = make_deliveries(consumer, 7, accepted_at=then, finished_at=then)
    make_messages(consumer, 3, accepted_at=then)  # no consumer subscribed to these
    ripen(held, then)
    assert sum(retention.prune(clock.now(), slot=0)) == 3
    with CaptureQueriesContext(connection) as captured:
        assert sum(retention.prune(clock.now(), slot=0)) == 0
    assert not [query for query in captured.captured_queries if "EXISTS" in query["sql"]]
    later = clock.now() + timedelta(days=60)
    assert sum(retention.prune(later, slot=0)) == 14
    assert not Message.objects.exists()
    assert_counters_are_true()


def test_a_longer_retention_does_not_keep_messages_for_ever() -> None:
    """Dead letters may be deleted before their messages, which are checked on their own expiry."""
    channel = make_channel(retention_days=10, dead_retention_days=20)
    consumer = make_consumer(channel, NOWHERE)
    then = clock.now() - timedelta(days=15)
    ripen(make_deliveries(consumer, 2, accepted_at=then, finished_at=then), then)
    assert sum(retention.prune(clock.now(), slot=0)) == 0  # dead letters still reference them
    Channel.objects.update(retention_days=30)
    assert sum(retention.prune(clock.now(), slot=0)) == 0
    assert sum(retention.prune(clock.now() + timedelta(days=6), slot=0)) == 2
    assert Message.objects.count() == 2
    assert sum(retention.prune(clock.now() + timedelta(days=16), slot=0)) == 2


def test_old_replays_are_deleted_and_running_ones_kept() -> None:
    then = clock.now() - timedelta(days=100)
    for state in ("finished", "running"):
        Replay.objects.create(
            id=key_at(then),
            state=state,
            filter={},
            requested_by="command",
            upper_id=1,
            next_due_at=then,
            created_at=then,
            finished_at=then if state == "finished" else None,
        )
    assert sum(retention.delete_replays(clock.now())) == 1
    assert Replay.objects.get().state == "running"


def test_an_idempotency_key_can_be_reused_after_its_window() -> None:
    channel = make_channel()
    (first,) = publish(channel, b"x", idempotency_key="k")
    IdempotencyRecord.objects.update(expires_at=clock.now() - timedelta(seconds=1))
    (second,) = publish(channel, b"y", idempotency_key="k")
    assert first != second
    assert sum(retention.delete_idempotency_keys(clock.now() + timedelta(days=2))) == 1
    assert not IdempotencyRecord.objects.exists()


def test_wrong_counters_are_noticed_and_repaired() -> None:
    consumer = make_consumer(make_channel(), NOWHERE)
    publish(consumer.channel, *[b"x"] * 4)
    fanout.fan_out(100, slot=0)
    assert counters.gap() == 0
    Counter.add({(consumer.id, "queued"): 3}, slot=5)
    assert counters.gap() == -3
    assert counters.repair() == 1
    assert counters.gap() == 0
    assert Counter.totals() == pumping.recounted()


@pytest.mark.seed("S0-33")
def test_the_sweep_fans_out_messages_that_no_pump_handled() -> None:
    channel = make_channel()
    make_consumer(channel, NOWHERE)
    publish(channel, *[b"x"] * 3)
    assert sweeps.not_fanned_out() == 0  # too recent: the pumps handle them
    Message.objects.update(accepted_at=clock.now() - timedelta(seconds=5))
    assert sweeps.not_fanned_out() == 3
    assert Delivery.objects.filter(state="queued").count() == 3


def test_deliveries_of_a_dead_pump_are_queued_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "QUIET_S", 0.0)
    consumer = make_consumer(make_channel(), NOWHERE)
    publish(consumer.channel, *[b"x"] * 5)
    fanout.fan_out(10, slot=0)
    held = registration.acquire("gone", "pump", 1)
    assert held is not None
    for owner, limit in ((held.generation, 3), (held.generation + 1, 10)):
        want = ClaimRequest(consumer.id, limit, 30_000, owner)
        claim.claim([want], now=clock.now(), slot=0)
    assert sweeps.orphans() == 0  # its pump still sends heartbeats
    PumpSlot.objects.update(
        heartbeat_at=clock.now() - timedelta(seconds=registration.STALE_AFTER_S + 1)
    )
    assert sweeps.orphans() == 3
    rows = Delivery.objects.values_list("state", "reason").order_by("state")
    assert list(rows) == [("in_flight", "claimed")] * 2 + [("queued", "interrupted")] * 3
    assert Attempt.objects.filter(outcome="interrupted").count() == 3
    assert_counters_are_true()
    assert not PumpSlot.objects.exists()


def test_a_sweep_runs_once_per_interval_whoever_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)  # the shortest interval is half a second
    sweeps.run_due()  # creates the rows that hold the clocks
    first = sweeps.run_due()
    assert first == len(sweeps.SWEEPS)
    assert sweeps.run_due() == 0
    assert not SweepRun.objects.exclude(last_error="").exists()
    SweepRun.objects.filter(name="orphans").update(next_at=now - timedelta(seconds=1))
    assert sweeps.run_due() == 1


def test_a_sweep_with_a_check_runs_for_work_or_as_a_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []
    work = [False]

    def step() -> Iterator[int]:
        begun.append(1)
        yield 0

    mine = sweeps.SweepScheduler([sweeps.Sweep("quick", 0.0, step, has_work=lambda: work[0])])
    for _ in range(4):  # the first turn creates the sweep's row
        mine.turn()
    assert len(begun) == 1
    work[0] = True
    assert mine.turn() == 1
    assert len(begun) == 2
    work[0] = False
    assert mine.turn() == 0
    monkeypatch.setattr(sweeps, "REPORT_INTERVAL_S", 0.0)
    assert mine.turn() == 1


def test_a_long_sweep_does_not_delay_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep that waited longest goes first; a failing one delays no other."""
    done: list[str] = []

    def long() -> Iterator[int]:
        for _ in range(5):
            done.append("long")
            yield 1

    def short() -> Iterator[int]:
        done.append("short")
        yield 0

    def broken() -> Iterator[int]:
        yield 1
        raise OperationalError("away")

    works = {"long": long, "broken": broken, "short": short}
    mine = sweeps.SweepScheduler([sweeps.Sweep(name, 60.0, work) for name, work in works.items()])
    monkeypatch.setattr(sweeps, "SLICE_S", 0.0)
    mine.turn()  # creates the rows that hold the clocks
    assert mine.turn() == 3
    assert mine.is_busy
    assert mine.rest_s() == 0.0
    while mine.is_busy:
        assert mine.turn() == 0
    assert done == ["long", "short", *["long"] * 4]
    assert 50.0 < mine.rest_s() <= 60.0
    assert mine.turn() == 0
    told = SweepRun.objects.values_list("name", "last_count", "last_error")
    assert set(told) == {
        ("long", 5, ""), ("short", 0, ""), ("broken", 1, "OperationalError: away"),
    }  # fmt: skip


def test_sweeps_that_fall_due_nearly_together_begin_together() -> None:
    """Each still runs once: a rival at that moment finds their clocks already moved."""
    names = ("now", "soon", "later")
    some = [sweeps.Sweep(name, 60.0, lambda: iter([0])) for name in names]
    for name, seconds in zip(names, (0.0, sweeps.SOON_S, 5.0), strict=True):
        SweepRun.objects.create(name=name, next_at=clock.now() + timedelta(seconds=seconds))
    mine, rival = sweeps.SweepScheduler(some), sweeps.SweepScheduler(some)
    assert mine.turn() == 2
    assert rival.turn() == mine.turn() == 0
    assert set(SweepRun.objects.exclude(last_started_at=None)) == set(
        SweepRun.objects.filter(name__in=("now", "soon"))
    )


def test_a_running_sweep_is_not_started_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock is moved forward for as long as it runs."""
    monkeypatch.setattr(sweeps, "SLICE_S", 0.0)
    endless = sweeps.Sweep("long", 60.0, lambda: itertools.repeat(1))
    move = clocks.forward(monkeypatch, sweeps)
    mine, rival = (sweeps.SweepScheduler([endless]), sweeps.SweepScheduler([endless]))
    mine.turn()
    assert mine.turn() == 1
    for _ in range(50):
        mine.turn()
        assert rival.turn() == 0
        move(3.0)


@pytest.mark.trap("a sweep that is not scheduled")
def test_the_fallback_run_of_the_sweeps_is_scheduled() -> None:
    task_queue.ensure_schedules()
    task_queue.ensure_schedules()
    assert sorted(Schedule.objects.values_list("func", "minutes")) == [
        ("delivery.cluster.tasks.pipeline", 1),
        ("delivery.cluster.tasks.sweep", 1),
    ]


def test_a_slot_is_held_by_one_process_and_taken_over_from_a_dead_one() -> None:
    first = registration.acquire("c", "pump", 1)
    assert first is not None
    assert registration.acquire("c", "pump", 1) is None
    PumpSlot.objects.update(pid=2**22 + 1)  # no process has this number
    second = registration.acquire("c", "pump", 1)
    assert second is not None
    assert second.predecessor == first.generation
    assert not registration.beat(first, 0)
    assert registration.beat(second, 0)


def test_a_slot_that_is_deleted_while_it_is_taken_over_is_taken_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The maintenance process deletes slots of dead pumps while new workers take them."""
    assert registration.acquire("c", "pump", 1) is not None
    PumpSlot.objects.update(pid=2**22 + 1)  # no process has this number
    look = registration.is_dead

    def look_and_delete(slot: PumpSlot, now: datetime) -> bool:
        found = look(slot, now)
        assert registration.reap(slot)
        return found

    monkeypatch.setattr(registration, "is_dead", look_and_delete)
    second = registration.acquire("c", "pump", 1)
    assert second is not None
    assert registration.beat(second, 0)


@pytest.mark.seed("S0-27")
def test_without_wakeups_everything_is_delivered(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))
    with pumping.pumping() as pump:
        pump.accepted_hint = False
        accept.accept(view_of(channel), None, [accept.Publication(b"x")])
        pump_until(pump, all_finished)
    assert len(receiver.requests()) == 1


def test_missing_pumps_and_a_stopped_task_queue_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = registration.acquire("c", "pump", 1)
    assert held is not None
    watch = registration.Watch("c", 1)
    assert watch()
    watch._started_at -= registration.STALLED_AFTER_S + 1
    assert not watch(), "no task has run since"
    tasks.sweep()
    registration.beat(held, 0)  # the sweeps may have taken longer than the heartbeat timeout
    assert watch()

    registration.leave(held)
    assert watch(), "a short gap between two pumps"
    monkeypatch.setattr(registration, "STALLED_AFTER_S", 0.0)
    assert not watch()


def test_expired_sessions_are_deleted_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    now = clock.now()
    for number in range(4):
        ends = now + timedelta(seconds=number - 3)
        Session.objects.create(session_key=f"s{number}", session_data="", expire_date=ends)

    assert list(retention.delete_sessions(now)) == [2, 1]
    assert Session.objects.get().session_key == "s3"


def test_old_sign_in_failures_are_deleted() -> None:
    cache.clear()
    cache.set("over", 1, timeout=1)
    cache.set("counts", 1, timeout=300)

    assert retention.delete_sign_in_attempts(clock.now() + timedelta(seconds=60)) == 1
    assert cache.get("counts") == 1
    assert retention.delete_sign_in_attempts(clock.now() + timedelta(seconds=400)) == 1
