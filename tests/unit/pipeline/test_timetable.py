"""Forecast: the usual traffic and the scheduled messages, combined and added up."""

from datetime import UTC, datetime, timedelta

from pipeline.rules import timetable
from pipeline.rules.estimates import DAY, HOUR, WEEK, Basis, Load
from pipeline.rules.timetable import ALL, Hour, Known, Past

START = datetime(2026, 11, 22, 5, tzinfo=UTC)
SOON = START + timedelta(minutes=10)


def past(*, at_once: float = 0, later: float = 0) -> Past:
    """Return four weeks with the same load in every hour."""
    every = [START - HOUR * number for number in range(1, 4 * 168 + 1)]
    one, other = Load(at_once, 2 * at_once, 100.0 * at_once), Load(later, 2 * later, 0)
    return Past(
        dict.fromkeys(every, one) if at_once else {}, dict.fromkeys(every, other) if later else {}
    )


def test_what_is_known_counts_where_it_is_more_than_usual() -> None:
    known = Known({SOON: Load(7, 14, 0)})
    first, second = timetable.hours(past(at_once=3, later=5), known, START, 2, 4)

    assert (first.load.messages, first.scheduled, first.low, first.high) == (10, 7, 10, 10)
    assert (second.load.messages, second.scheduled) == (8, 0)


def test_retries_are_deliveries_and_no_messages() -> None:
    known = Known(retries={SOON: Load(0, 4, 900)})
    (hour,) = timetable.hours(past(at_once=3), known, START, 1, 4)

    assert hour.load == Load(3, 10, 1200)


def test_a_sum_stands_on_the_roughest_of_its_parts() -> None:
    whole = Hour()
    whole.add(Hour(Load(3), samples=4, basis=Basis.WEEKS))
    whole.add(Hour())
    assert (whole.basis, whole.samples) == (Basis.WEEKS, 4)
    whole.add(Hour(Load(1), samples=2, basis=Basis.DAYS))
    assert (whole.load.messages, whole.basis, whole.samples) == (4, Basis.DAYS, 2)
    whole.add(Hour(planned=Load(9)))
    assert (whole.load.messages, whole.basis, whole.samples) == (13, Basis.NOTHING, 0)


def test_a_quiet_hour_stands_on_its_weeks_too() -> None:
    whole = Hour()
    whole.add(Hour(samples=4, basis=Basis.WEEKS))

    assert (whole.basis, whole.samples) == (Basis.WEEKS, 4)


def test_a_peak_is_hot_and_its_busiest_minute_says_how_many_pumps() -> None:
    known = Known({SOON: Load(600, 1200, 0)})
    found = timetable.hours(past(at_once=30), known, START, 24, 4)
    frames = list(timetable.frames(ALL, START, found, known))

    assert [frame.is_hot for frame in frames] == [True] + [False] * 23
    assert frames[0].per_second == (1200 + 1) / 60
    assert frames[1].per_second == 60 / 3600
    assert timetable.hot_minutes(found, known, 10) == [SOON]
    assert timetable.hot_minutes(found, known, 0) == []


def test_quiet_hours_of_a_channel_have_no_frame() -> None:
    found = timetable.hours(Past(), Known({SOON: Load(1, 1, 1)}), START, 24, 4)

    assert len(list(timetable.frames(7, START, found, Known()))) == 1
    assert len(list(timetable.frames(ALL, START, found, Known()))) == 24


def test_a_backtest_knows_nothing_of_the_week_that_it_forecasts() -> None:
    steady = past(at_once=3)
    for number in range(1, 25):
        steady.at_once[START - HOUR * number] = Load(9)

    pairs = list(timetable.backtest(steady, START, 168, 3))

    assert pairs == [(3, 3)] * 144 + [(9, 3)] * 24


def test_a_channel_that_came_last_week_was_not_forecast() -> None:
    young = Past({START - DAY: Load(5)})

    pairs = list(timetable.backtest(young, START, 168, 3))

    assert sum(came for came, _ in pairs) == 5
    assert {said for _, said in pairs} == {0}


def test_known_minutes_of_channels_add_up() -> None:
    whole = Known()
    for _ in range(2):
        whole.add(Known({SOON: Load(1, 2, 3)}, {SOON: Load(0, 1, 1)}))

    assert whole.of(SOON) == Load(2, 6, 8)
    assert timetable.minute(3, SOON - WEEK, whole, 0) is None
