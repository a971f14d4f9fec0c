"""The estimate of the database's time between two queries."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from channels_app.database import clock
from channels_app.database.clock import RESYNC_S, DatabaseClock

START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("late_ms", "then_ms"),
    [
        (0, [0, 20, 1_000]),
        (30, [0, 0, 970]),  # stands still until the response has caught up
        (-30, [30, 50, 1_030]),  # the former response was late
        (5_000, [-5_000, -4_980, -4_000]),  # the database's clock was set back
    ],
)
def test_a_late_response_does_not_set_the_time_back(
    monkeypatch: pytest.MonkeyPatch, late_ms: int, then_ms: list[int]
) -> None:
    ticks, off = 0.0, timedelta()
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: ticks))
    monkeypatch.setattr(clock, "_ask", lambda: START + timedelta(seconds=ticks) - off)
    estimate = DatabaseClock()
    assert estimate.now() == START

    ticks, off = RESYNC_S + 1, timedelta(milliseconds=late_ms)
    times = []
    for later_s in (0.0, 0.02, 1.0):
        ticks = RESYNC_S + 1 + later_s
        times.append(estimate.now() - START - timedelta(seconds=RESYNC_S + 1))
        assert estimate.unix_ms() == pytest.approx(estimate.now().timestamp() * 1000, abs=1)
    assert times == [timedelta(milliseconds=ms) for ms in then_ms]


def test_an_answer_that_another_thread_overtook_does_not_set_the_time_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One thread's query takes half a second; meanwhile another thread's is answered at once."""
    ticks = 0.0

    def ask() -> datetime:
        nonlocal ticks
        read_at = START + timedelta(seconds=ticks)
        if ticks == 0.0:
            ticks = 0.5
            estimate.sync()
        return read_at

    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: ticks))
    monkeypatch.setattr(clock, "_ask", ask)
    estimate = DatabaseClock()
    estimate.sync()
    assert estimate.now() == START + timedelta(seconds=0.5)


@pytest.mark.parametrize(
    ("set_back_s", "then_s"),
    [
        (0, 0),
        (30, -35),  # the clock was set back: the time is late by the round trip
    ],
)
def test_a_slow_response_changes_the_time_only_if_it_contradicts_it(
    monkeypatch: pytest.MonkeyPatch, set_back_s: int, then_s: int
) -> None:
    """The second query's response takes five seconds."""
    ticks, takes_s, off = 0.0, 0.0, timedelta()

    def ask() -> datetime:
        nonlocal ticks
        read_at = START + timedelta(seconds=ticks) - off
        ticks += takes_s
        return read_at

    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: ticks))
    monkeypatch.setattr(clock, "_ask", ask)
    estimate = DatabaseClock()
    estimate.sync()
    ticks, takes_s, off = RESYNC_S + 1, 5.0, timedelta(seconds=set_back_s)
    estimate.sync()
    assert estimate.now() == START + timedelta(seconds=ticks + then_s)
    takes_s = 0.0
    ticks += clock.RETRY_S + 0.1
    assert estimate.now() == START + timedelta(seconds=ticks) - off  # asked again soon


def test_elapsed_time_is_never_negative() -> None:
    assert clock.elapsed(START, START + timedelta(seconds=2)) == timedelta(seconds=2)
    assert clock.elapsed(START, START - timedelta(seconds=2)) == timedelta(0)
