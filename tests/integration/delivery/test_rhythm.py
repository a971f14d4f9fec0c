"""When a pump polls, which consumers it polls, and when it writes."""

import itertools
import threading
import time
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError

from channels_app.database import clock
from delivery.models import Attempt, Delivery
from delivery.pump import capacity, results
from delivery.pump import pump as pump_module
from delivery.pump.consumer_queue import LEAD, ConsumerQueue
from delivery.queue import fanout, settle
from tests.support import pumping
from tests.support.pumping import all_finished, make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver, Reply
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"


def test_idle_consumers_are_not_queried(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, quiet = make_channel(), make_channel()
    busy = make_consumer(channel, receiver.url("/ok"))
    for _ in range(15):
        make_consumer(quiet, NOWHERE)
    looked: list[int] = []
    for name in ("capacity", "has_due", "place", "wake_at"):
        monkeypatch.setattr(ConsumerQueue, name, _counted(getattr(ConsumerQueue, name), looked))
    with pumping.pumping() as pump:
        pump_until(pump, lambda: not pump.assignment._unexamined)
        pump.round()
        looked.clear()
        publish(channel, b"x")
        pump.accepted_hint, pump.next_poll = True, time.monotonic() + 3600.0

        def is_finished() -> bool:
            pump.round()
            return all_finished()

        until(is_finished, "the message is delivered")
    assert set(looked) == {busy.id}


def _counted(method: Any, seen: list[int]) -> Any:
    def call(queue: ConsumerQueue, *more: Any) -> Any:
        seen.append(queue.consumer.id)
        return method(queue, *more)

    return call


@pytest.mark.seed("S4-R8")
def test_a_consumer_queue_sleeps_until_its_due_time_or_an_event() -> None:
    make_consumer(make_channel(), NOWHERE)
    with pumping.pumping() as pump:
        pump.assignment.refresh()
        (queue,) = pump.assignment.queues.values()
        ready_consumers, now = pump.assignment.ready_consumers, clock.now()
        soon, later = now + timedelta(minutes=1), now + timedelta(minutes=2)

        def looked_at(instant: datetime) -> list[ConsumerQueue]:
            picks = ready_consumers.gather(instant, time.monotonic(), lambda *_: 1, 10)
            return [pick.queue for pick in picks]

        pump.assignment.expect(queue.consumer.id, later)
        assert looked_at(soon) == []
        assert ready_consumers.wake_at() == (later - LEAD).timestamp()

        pump.assignment.expect(queue.consumer.id, soon)
        assert looked_at(now) == []
        assert ready_consumers.wake_at() == (soon - LEAD).timestamp()
        assert looked_at(soon) == [queue]

        queue.due.clear()
        ready_consumers.note(queue)
        assert looked_at(later) == []
        assert ready_consumers.wake_at() is None


def test_results_are_batched_unless_no_more_can_arrive(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LINGER_S", 60.0)
    channel = make_channel()
    make_consumer(channel, receiver.url("/some"), max_in_flight=2)
    is_kept = threading.Event()
    receiver.script("/some", [Reply(200), Reply(200, until=is_kept)])
    publish(channel, b"1", b"2")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: len(pump.recorder.results) == 1)
        for _ in range(3):
            pump._record()
        assert not Attempt.objects.exists()
        is_kept.set()
        pump_until(pump, all_finished)
    assert Attempt.objects.count() == 2


def test_a_result_waits_briefly_for_a_batch(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/some"))
    receiver.script("/some", [Reply(200), Reply(hang=True)])
    publish(channel, b"1", b"2")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: Delivery.objects.filter(state="delivered").exists())
        assert pump.open


@pytest.mark.parametrize(
    ("found", "took_s", "pause_s"),
    [
        (1, 0.004, 0.0),
        (pump_module.MUCH, 0.004, 0.004),
        (pump_module.MUCH, 1.0, pump_module.REST_S),
    ],
)
def test_a_busy_pump_pauses_as_long_as_its_query_took(
    found: int, took_s: float, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks, looks = time.monotonic(), 0

    def slow(*args: Any, **options: Any) -> fanout.FanoutResult:
        nonlocal ticks, looks
        looks += 1
        ticks += took_s
        pump.accepted_hint = True
        return fanout.FanoutResult(found)

    with pumping.pumping() as pump:
        pump.round()
        monkeypatch.setattr(fanout, "fan_out", slow)
        monkeypatch.setattr(pump_module, "time", SimpleNamespace(monotonic=lambda: ticks))
        pump.accepted_hint, pump.next_scan = True, 0.0
        pump.round()
        assert max(0.0, pump.next_scan - ticks) == pytest.approx(pause_s)
        pump.round()
        assert looks == (1 if pause_s else 2), "only time ends the pause"
        ticks += pause_s
        pump.round()
        assert looks == (2 if pause_s else 3)


def test_requests_go_out_before_results_are_written(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LINGER_S", 0.0)
    channel = make_channel()
    make_consumer(channel, receiver.url("/some"))
    is_flushed = threading.Event()
    receiver.script("/some", [Reply(200), Reply(200, until=is_flushed)])
    with pumping.pumping() as pump:
        publish(channel, b"1")
        pump_until(pump, lambda: len(pump.recorder.results) == 1)
        publish(channel, b"2")
        pump.accepted_hint = True
        sent: list[int] = []
        flush = pump.recorder.flush

        def noted() -> None:
            sent.append(len(pump.open))
            flush()

        monkeypatch.setattr(pump.recorder, "flush", noted)
        pump.round()
        assert sent == [1]
        is_flushed.set()
        pump_until(pump, all_finished)


def test_results_are_written_later_after_a_database_error(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))
    publish(channel, b"1")
    real, tries = settle.settle, itertools.count()

    def away(*args: Any, **more: Any) -> int:
        if next(tries) < 2:
            raise OperationalError(2006, "Server has gone away")
        return real(*args, **more)

    monkeypatch.setattr(settle, "settle", away)
    with pumping.pumping() as pump:
        for _ in range(2):
            with pytest.raises(OperationalError):
                pump_until(pump, all_finished)
            assert len(pump.recorder.results) == 1
        pump_until(pump, all_finished)
    assert len(receiver.requests()) == Attempt.objects.count() == 1


def test_fan_out_is_limited_to_what_an_idle_consumer_can_claim(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"), max_in_flight=50)
    with pumping.pumping() as pump:
        pump.assignment.refresh()
        assert pump.capacity_planner.fanout_limit(clock.now()) == capacity.FANOUT_BATCH
        publish(channel, b"first")
        pump_until(pump, all_finished)
        (queue,) = pump.assignment.queues.values()
        queue.in_flight, queue.due = 30, {}
        assert pump.capacity_planner.fanout_limit(clock.now()) == 20
        queue.in_flight = 49
        assert pump.capacity_planner.fanout_limit(clock.now()) == capacity.MIN_FANOUT_BATCH
        monkeypatch.setattr(capacity, "FULL_S", 60.0)
        queue.in_flight = 50
        assert pump.capacity_planner.fanout_limit(clock.now()) == 0
        pump.capacity_planner.full_until -= 60.0
        assert pump.capacity_planner.fanout_limit(clock.now()) == capacity.FANOUT_BATCH
        queue.in_flight, queue.due = 0, {4: clock.now()}
        assert pump.capacity_planner.fanout_limit(clock.now()) == capacity.FANOUT_BATCH


def test_a_consumer_that_hangs_does_not_hold_up_the_fan_out(receiver: Receiver) -> None:
    channel = make_channel()
    hung = make_consumer(channel, receiver.url("/hang"), max_in_flight=1, timeout_ms=60_000)
    with pumping.pumping() as pump:
        publish(channel, b"x")
        pump_until(pump, lambda: len(pump.open) == 1)
        publish(channel, *[b"x"] * 60)
        make_consumer(channel, receiver.url("/ok"))
        publish(channel, *[b"x"] * 60)
        pump_until(pump, lambda: hung.deliveries.filter(state="queued").count() == 120)
        pump_until(pump, lambda: Delivery.objects.filter(state="delivered").count() == 120)
