"""When a pump looks, at whom, and when it writes."""

import itertools
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError

from channels_app import clock
from delivery.models import Attempt, Delivery
from delivery.runtime import allotment, recorder
from delivery.runtime import pump as pump_module
from delivery.runtime.line import LEAD, Line
from delivery.steps import dispatch, settle
from tests.support import pumping
from tests.support.pumping import all_finished, make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"


def test_consumers_with_nothing_to_do_are_not_looked_at(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, quiet = make_channel(), make_channel()
    busy = make_consumer(channel, receiver.url("/ok"))
    for _ in range(50):
        make_consumer(quiet, NOWHERE)
    looked: list[int] = []
    for name in ("capacity", "has_due", "place", "wake_at"):
        monkeypatch.setattr(Line, name, _counted(getattr(Line, name), looked))
    with pumping.pumping() as pump:
        pump_until(pump, lambda: not pump.roster._unasked)
        pump.round()
        looked.clear()
        publish(channel, b"x")
        pump.accepted_hint, pump.next_poll = True, time.monotonic() + 10.0
        for _ in range(50):
            pump.round()
            if all_finished():
                break
    assert set(looked) == {busy.id}


def _counted(method: Any, seen: list[int]) -> Any:
    def call(line: Line, *more: Any) -> Any:
        seen.append(line.view.id)
        return method(line, *more)

    return call


@pytest.mark.seed("S4-R8")
def test_a_line_sleeps_until_its_instant_or_until_something_happens_to_it() -> None:
    make_consumer(make_channel(), NOWHERE)
    with pumping.pumping() as pump:
        pump.roster.refresh()
        (line,) = pump.roster.lines.values()
        agenda, now = pump.roster.agenda, clock.now()
        soon, later = now + timedelta(minutes=1), now + timedelta(minutes=2)

        def looked_at(instant: datetime) -> list[Line]:
            picks = agenda.gather(instant, time.monotonic(), lambda *_: 1, 10)
            return [pick.line for pick in picks]

        pump.roster.expect(line.view.id, later)
        assert looked_at(soon) == []
        assert agenda.wake_at() == (later - LEAD).timestamp()

        pump.roster.expect(line.view.id, soon)
        assert looked_at(now) == []
        assert agenda.wake_at() == (soon - LEAD).timestamp()
        assert looked_at(soon) == [line]

        line.due.clear()
        agenda.note(line)
        assert looked_at(later) == []
        assert agenda.wake_at() is None


def test_results_are_written_in_company_and_at_once_when_no_more_can_come(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "COMPANY_S", 60.0)
    channel = make_channel()
    make_consumer(channel, receiver.url("/some"), max_in_flight=2)
    receiver.script("/some", [Reply(200), Reply(200, delay_ms=300), Reply(200)])
    publish(channel, b"1", b"2")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: len(pump.recorder.results) == 1)
        for _ in range(3):
            pump._record()
        assert not Attempt.objects.exists()
        pump_until(pump, all_finished)
    assert Attempt.objects.count() == 2


def test_a_result_does_not_wait_long_for_company(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/some"))
    receiver.script("/some", [Reply(200), Reply(hang=True)])
    publish(channel, b"1", b"2")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: Delivery.objects.filter(state="delivered").exists())
        assert pump.open


@pytest.mark.parametrize(("found", "least_s"), [(1, 0.0), (pump_module.MUCH, 0.004)])
def test_a_pump_that_finds_much_rests_as_long_as_a_look_took(
    found: int, least_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    ends: list[float] = []

    def slow(*args: Any, **options: Any) -> dispatch.Dispatched:
        looks.append(time.monotonic())
        pump.accepted_hint = True
        time.sleep(0.004)
        ends.append(time.monotonic())
        return dispatch.Dispatched(found)

    with pumping.pumping() as pump:
        pump.round()
        pump.next_poll = pump.membership.next_beat = time.monotonic() + 10.0
        monkeypatch.setattr(dispatch, "dispatch", slow)
        pump.accepted_hint = True
        while len(looks) < 20:
            pump.round()
    rests = [look - end for end, look in zip(ends, looks[1:], strict=False)]
    assert min(rests) >= least_s
    if not least_s:
        assert min(rests) < 0.003


def test_requests_go_out_before_results_are_written(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "COMPANY_S", 0.0)
    channel = make_channel()
    make_consumer(channel, receiver.url("/some"))
    receiver.script("/some", [Reply(200), Reply(200, delay_ms=500)])
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
        pump_until(pump, all_finished)


def test_results_that_the_database_did_not_take_are_written_later(
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


def test_no_more_is_fanned_out_than_a_consumer_at_rest_takes_at_birth(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"), max_in_flight=50)
    with pumping.pumping() as pump:
        pump.roster.refresh()
        assert pump.allotment.appetite(clock.now()) == allotment.DISPATCH_BATCH
        publish(channel, b"first")
        pump_until(pump, all_finished)
        (line,) = pump.roster.lines.values()
        line.in_flight, line.due = 30, {}
        assert pump.allotment.appetite(clock.now()) == 20
        line.in_flight = 49
        assert pump.allotment.appetite(clock.now()) == allotment.DISPATCH_LEAST
        monkeypatch.setattr(allotment, "FULL_S", 0.05)
        line.in_flight = 50
        assert pump.allotment.appetite(clock.now()) == 0
        time.sleep(0.06)
        assert pump.allotment.appetite(clock.now()) == allotment.DISPATCH_BATCH
        line.in_flight, line.due = 0, {4: clock.now()}
        assert pump.allotment.appetite(clock.now()) == allotment.DISPATCH_BATCH


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
