"""Forecast: the usual traffic and the scheduled messages, combined and added up."""

from datetime import UTC, datetime, timedelta

from pipeline.core import forecast
from pipeline.core.forecast import (
    ALL,
    DAY,
    HOUR,
    WEEK,
    Basis,
    HourForecast,
    Load,
    PastLoad,
    ScheduledLoad,
)

START = datetime(2026, 11, 22, 5, tzinfo=UTC)
SOON = START + timedelta(minutes=10)


def past(*, at_once: float = 0, later: float = 0) -> PastLoad:
    """Return four weeks with the same load in every hour."""
    every = [START - HOUR * number for number in range(1, 4 * 168 + 1)]
    one, other = Load(at_once, 2 * at_once, 100.0 * at_once), Load(later, 2 * later, 0)
    return PastLoad(
        dict.fromkeys(every, one) if at_once else {}, dict.fromkeys(every, other) if later else {}
    )


def test_what_is_known_counts_where_it_is_more_than_usual() -> None:
    known = ScheduledLoad({SOON: Load(7, 14, 0)})
    first, second = forecast.forecast_hours(past(at_once=3, later=5), known, START, 2, 4)

    assert (first.load.messages, first.scheduled, first.low, first.high) == (10, 7, 10, 10)
    assert (second.load.messages, second.scheduled) == (8, 0)


def test_retries_are_deliveries_and_no_messages() -> None:
    known = ScheduledLoad(retries={SOON: Load(0, 4, 900)})
    (hour,) = forecast.forecast_hours(past(at_once=3), known, START, 1, 4)

    assert hour.load == Load(3, 10, 1200)


def test_a_sum_stands_on_the_roughest_of_its_parts() -> None:
    whole = HourForecast()
    whole.add(HourForecast(Load(3), samples=4, basis=Basis.WEEKS))
    whole.add(HourForecast())
    assert (whole.basis, whole.samples) == (Basis.WEEKS, 4)
    whole.add(HourForecast(Load(1), samples=2, basis=Basis.DAYS))
    assert (whole.load.messages, whole.basis, whole.samples) == (4, Basis.DAYS, 2)
    whole.add(HourForecast(planned=Load(9)))
    assert (whole.load.messages, whole.basis, whole.samples) == (13, Basis.NOTHING, 0)


def test_a_quiet_hour_stands_on_its_weeks_too() -> None:
    whole = HourForecast()
    whole.add(HourForecast(samples=4, basis=Basis.WEEKS))

    assert (whole.basis, whole.samples) == (Basis.WEEKS, 4)


def test_a_peak_is_hot_and_its_busiest_minute_says_how_many_pumps() -> None:
    known = ScheduledLoad({SOON: Load(600, 1200, 0)})
    found = forecast.forecast_hours(past(at_once=30), known, START, 24, 4)
    frames = list(forecast.hour_rows(ALL, START, found, known))

    assert [frame.is_hot for frame in frames] == [True] + [False] * 23
    assert frames[0].per_second == (1200 + 1) / 60
    assert frames[1].per_second == 60 / 3600
    assert forecast.hot_minutes(found, known, 10) == [SOON]
    assert forecast.hot_minutes(found, known, 0) == []


def test_quiet_hours_of_a_channel_have_no_frame() -> None:
    found = forecast.forecast_hours(PastLoad(), ScheduledLoad({SOON: Load(1, 1, 1)}), START, 24, 4)

    assert len(list(forecast.hour_rows(7, START, found, ScheduledLoad()))) == 1
    assert len(list(forecast.hour_rows(ALL, START, found, ScheduledLoad()))) == 24


def test_a_backtest_knows_nothing_of_the_week_that_it_forecasts() -> None:
    steady = past(at_once=3)
    for number in range(1, 25):
        steady.at_once[START - HOUR * number] = Load(9)

    pairs = list(forecast.backtest(steady, START, 168, 3))

    assert pairs == [(3, 3)] * 144 + [(9, 3)] * 24


def test_a_channel_that_came_last_week_was_not_forecast() -> None:
    young = PastLoad({START - DAY: Load(5)})

    pairs = list(forecast.backtest(young, START, 168, 3))

    assert sum(came for came, _ in pairs) == 5
    assert {said for _, said in pairs} == {0}


def test_known_minutes_of_channels_add_up() -> None:
    whole = ScheduledLoad()
    for _ in range(2):
        whole.add(ScheduledLoad({SOON: Load(1, 2, 3)}, {SOON: Load(0, 1, 1)}))

    assert whole.of(SOON) == Load(2, 6, 8)
    assert forecast.minute_row(3, SOON - WEEK, whole, 0) is None
