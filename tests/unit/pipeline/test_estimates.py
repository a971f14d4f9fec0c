"""Estimates: which hours an estimate is based on, and how large its error is."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core import names
from pipeline.core import forecast
from pipeline.core.forecast import DAY, HOUR, WEEK, Basis, Load
from tests.support.properties import quick

START = datetime(2026, 11, 22, 5, tzinfo=UTC)


def hours(**weeks_ago: float) -> dict[datetime, Load]:
    """Return the messages of the START hour some weeks earlier, given as ``w1=3``."""
    return {START - WEEK * int(name[1:]): Load(number) for name, number in weeks_ago.items()}


def test_it_is_the_median_of_the_weeks_and_an_hour_without_messages_counts() -> None:
    known = hours(w1=9, w2=2, w3=4)
    found = forecast.estimate(known, START, since=START - 4 * WEEK, until=START, weeks=4)

    assert (found.load.messages, found.low, found.high) == (3, 0, 9)
    assert (found.samples, found.basis) == (4, Basis.WEEKS)


def test_weeks_of_which_nothing_is_known_do_not_count() -> None:
    known = hours(w1=9, w2=3)
    found = forecast.estimate(known, START, since=START - 2 * WEEK, until=START, weeks=4)

    assert (found.load.messages, found.samples) == (6, 2)


def test_with_less_than_a_week_it_is_the_same_hour_of_the_days() -> None:
    known = {START - DAY * number: Load(number) for number in (1, 2, 3)}
    found = forecast.estimate(known, START, since=START - 3 * DAY, until=START, weeks=4)

    assert (found.load.messages, found.samples, found.basis) == (2, 3, Basis.DAYS)


def test_with_less_than_a_day_it_is_the_mean() -> None:
    known = {START - HOUR: Load(6), START - 3 * HOUR: Load(3)}
    at = START + 5 * HOUR
    found = forecast.estimate(known, at, since=START - 3 * HOUR, until=START, weeks=4)

    assert (found.load.messages, found.low, found.high) == (3, 0, 6)
    assert found.basis is Basis.MEAN


def test_without_history_nothing_is_expected() -> None:
    assert forecast.estimate({}, START, since=START, until=START, weeks=4) == forecast.NO_ESTIMATE


@quick
@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=20))
def test_errors_are_shares_of_what_came(pairs: list[tuple[float, float]]) -> None:
    weighted, mean = forecast.forecast_errors(pairs)
    if not any(came for came, _ in pairs):
        assert (weighted, mean) == (None, None)
        return
    assert weighted == sum(abs(a - b) for a, b in pairs) / sum(a for a, _ in pairs)
    assert mean is not None
    assert mean >= 0


def test_a_perfect_forecast_has_no_error() -> None:
    assert forecast.forecast_errors([(3, 3), (0, 0), (5, 5)]) == (0, 0)
    assert forecast.forecast_errors([(4, 3), (0, 1), (1, 1)]) == (2 / 5, 1 / 8)


@pytest.mark.parametrize(("per_second", "pumps"), [(0, 1), (600, 1), (600.1, 2), (6000, 10)])
def test_a_pump_more_when_the_others_are_full(per_second: float, pumps: int) -> None:
    assert forecast.pumps_needed(per_second, 600) == pumps


def test_hot_is_far_above_the_usual() -> None:
    assert forecast.hot_threshold([10, 12, 8, 500]) == 55
    assert forecast.hot_threshold([0, 0, 0]) == forecast.HOT_FACTOR
    assert forecast.hot_threshold([]) == forecast.HOT_FACTOR


NAMES = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map(".".join)


@quick
@given(st.lists(NAMES | NAMES.map("{}.*".format) | st.just("*"), max_size=3), NAMES | st.just(""))
def test_a_consumer_wants_what_the_broker_sends_it(patterns: list[str], event_type: str) -> None:
    assert forecast.matches(patterns, event_type) == names.matches(patterns, event_type)
