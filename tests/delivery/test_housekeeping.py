"""Retention, recounting, sweeps and slots: what keeps the house in order while nobody looks."""

import time
from datetime import timedelta

import pytest
from django_q.models import Schedule

from channels_app import clock
from channels_app.models import IdempotencyRecord, Message, MessageBody
from channels_app.rules import ids
from channels_app.steps import accept
from delivery.models import Attempt, Counter, Delivery, PumpSlot, SweepRun
from delivery.runtime import schedules, slots, sweeps, tasks
from delivery.steps import claim, dispatch, recount, retention
from delivery.steps.claim import Want
from tests import pumping
from tests.pumping import all_finished, make_channel, make_consumer, publish, pump_until, view_of
from tests.receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"


def age(delivery: Delivery, days: int, state: str = "delivered") -> None:
    """Make a delivery, and its message, as old as if it had been accepted days ago."""
    then = clock.now() - timedelta(days=days)
    old = ids.first_id_at(int(then.timestamp() * 1000))
    message = Message.objects.get(id=delivery.message_id)
    body = MessageBody.objects.get(message_id=message.id)
    Message.objects.filter(id=message.id).update(id=old, accepted_at=then)
    MessageBody.objects.filter(message_id=body.message_id).update(message_id=old)
    Delivery.objects.filter(id=delivery.id).update(
        id=old, message_id=old, accepted_at=then, finished_at=then, state=state, due_at=None
    )


def test_retention_deletes_what_is_finished_and_old_and_nothing_else() -> None:
    channel = make_channel()
    consumer = make_consumer(channel, NOWHERE)
    publish(channel, *[b"x"] * 5)
    dispatch.dispatch(100, slot=0)
    delivered, dead, old_dead, waiting, fresh = Delivery.objects.order_by("id")
    age(delivered, 31)
    age(dead, 32, "dead")
    age(old_dead, 91, "dead")
    Delivery.objects.filter(id=fresh.id).update(
        state="delivered", finished_at=clock.now(), due_at=None
    )
    recount.recount(consumer.id)
    assert retention.prune(clock.now(), slot=0) == 4  # two deliveries and their messages
    left = set(Delivery.objects.values_list("state", flat=True))
    assert left == {"dead", "queued", "delivered"}
    assert Delivery.objects.filter(id=waiting.id).exists()
    assert Message.objects.count() == MessageBody.objects.count() == 3
    assert Counter.totals() == pumping.recounted()
    assert recount.gap() == 0


def test_a_channels_own_retention_counts() -> None:
    channel = make_channel(retention_days=3)
    make_consumer(channel, NOWHERE)
    publish(channel, b"x")
    dispatch.dispatch(100, slot=0)
    age(Delivery.objects.get(), 4)
    retention.prune(clock.now(), slot=0)
    assert not Message.objects.exists()


def test_a_closed_idempotency_window_is_forgotten_and_can_be_used_again() -> None:
    channel = make_channel()
    (first,) = publish(channel, b"x", idempotency_key="k")
    IdempotencyRecord.objects.update(expires_at=clock.now() - timedelta(seconds=1))
    (second,) = publish(channel, b"y", idempotency_key="k")
    assert first != second
    assert retention.forget_keys(clock.now() + timedelta(days=2)) == 1
    assert not IdempotencyRecord.objects.exists()


def test_wrong_books_are_noticed_and_mended() -> None:
    consumer = make_consumer(make_channel(), NOWHERE)
    publish(consumer.channel, *[b"x"] * 4)
    dispatch.dispatch(100, slot=0)
    assert recount.gap() == 0
    Counter.add({(consumer.id, "queued"): 3}, slot=5)
    assert recount.gap() == -3
    assert recount.mend() == 1
    assert recount.gap() == 0
    assert Counter.totals() == pumping.recounted()


@pytest.mark.seed("S0-33")
def test_the_sweep_fans_out_what_nobody_took() -> None:
    channel = make_channel()
    make_consumer(channel, NOWHERE)
    publish(channel, *[b"x"] * 3)
    assert sweeps.undispatched() == 0  # too young: the pumps have them
    Message.objects.update(accepted_at=clock.now() - timedelta(seconds=5))
    assert sweeps.undispatched() == 3
    assert Delivery.objects.filter(state="queued").count() == 3


def test_fanning_out_twice_makes_no_second_delivery() -> None:
    channel = make_channel()
    make_consumer(channel, NOWHERE)
    publish(channel, b"x")
    assert dispatch.dispatch(10, slot=0).message_count == 1
    assert dispatch.dispatch(10, slot=0).message_count == 0
    assert Delivery.objects.count() == 1


def test_the_orphans_of_a_dead_pump_are_queued_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "QUIET_S", 0.0)
    consumer = make_consumer(make_channel(), NOWHERE)
    publish(consumer.channel, *[b"x"] * 3)
    dispatch.dispatch(10, slot=0)
    held = slots.acquire("gone", "pump", 1)
    assert held is not None
    want = Want(consumer.id, 10, 30_000)
    claim.claim([want], now=clock.now(), owner=held.generation, slot=0)
    assert sweeps.orphans() == 0  # it beats
    PumpSlot.objects.update(heartbeat_at=clock.now() - timedelta(seconds=slots.STALE_S + 1))
    assert sweeps.orphans() == 3
    assert set(Delivery.objects.values_list("state", "reason")) == {("queued", "interrupted")}
    assert Attempt.objects.filter(outcome="interrupted").count() == 3
    assert not PumpSlot.objects.exists()


def test_a_sweep_runs_once_per_rhythm_whoever_asks() -> None:
    sweeps.run_due()  # makes the clocks
    first = sweeps.run_due()
    assert first == len(sweeps.SWEEPS)
    assert sweeps.run_due() == 0
    assert not SweepRun.objects.exclude(last_error="").exists()
    SweepRun.objects.filter(name="orphans").update(next_at=clock.now() - timedelta(seconds=1))
    assert sweeps.run_due() == 1


def test_the_second_belt_is_scheduled() -> None:
    schedules.ensure()
    schedules.ensure()
    assert list(Schedule.objects.values_list("func", "minutes")) == [
        ("delivery.runtime.tasks.sweep", 1)
    ]


def test_a_place_is_held_by_one_and_taken_over_from_the_dead() -> None:
    first = slots.acquire("c", "pump", 1)
    assert first is not None
    assert slots.acquire("c", "pump", 1) is None
    PumpSlot.objects.update(pid=2**22 + 1)  # no process has this number
    second = slots.acquire("c", "pump", 1)
    assert second is not None
    assert second.predecessor == first.generation
    assert not slots.beat(first, 0)
    assert slots.beat(second, 0)


@pytest.mark.seed("S0-27")
def test_without_any_hint_everything_is_still_delivered(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))
    with pumping.pumping() as pump:
        pump.accepted_hint = False
        accept.accept(view_of(channel), None, [accept.Publication(b"x")])
        pump_until(pump, all_finished)
    assert len(receiver.requests()) == 1


def test_the_watch_notices_missing_pumps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = slots.acquire("c", "pump", 1)
    watch = slots.Watch("c", 1)
    assert watch()
    assert held is not None
    slots.leave(held)
    assert watch()  # a gap between two pumps
    monkeypatch.setattr(slots, "STANDSTILL_S", 0.0)
    assert not watch()


def test_the_watch_notices_a_queue_that_runs_no_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    held = slots.acquire("c", "pump", 1)
    assert held is not None
    watch = slots.Watch("c", 1)
    monkeypatch.setattr(slots, "STANDSTILL_S", 0.01)
    time.sleep(0.02)
    assert not watch()
    tasks.sweep()
    monkeypatch.setattr(slots, "STANDSTILL_S", 0.02)
    assert watch()
