"""Bars and percentiles of the health page."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.rules import picture
from delivery.rules.picture import Fate
from tests.support.properties import quick

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@quick
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=300), st.sampled_from([50, 95, 99]))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(
    values: list[int], share: int
) -> None:
    values.sort()
    found = picture.percentile(values, share / 100)
    assert found is not None
    fitting = [value for value in values if 100 * _up_to(values, value) >= share * len(values)]
    assert found == min(fitting)


def _up_to(values: list[int], limit: int) -> int:
    return sum(value <= limit for value in values)


def test_nothing_has_no_percentile_and_no_rate() -> None:
    assert picture.percentile([], 0.5) is None
    assert picture.success_rate(picture.bar(BEGIN, BEGIN + HOUR, [], is_sample=False)) is None


def test_a_bar_counts_what_became_of_each() -> None:
    fates = [
        Fate("delivered", 1, 30),
        Fate("delivered", 3, 10),
        Fate("dead", 5),
        Fate("queued", 2),
        Fate("in_flight", 1),
    ]
    bar = picture.bar(BEGIN, BEGIN + HOUR, fates, is_sample=True)
    assert (bar.first, bar.later, bar.dead, bar.waiting) == (1, 1, 1, 2)
    assert bar.answers == (10, 30)
    assert picture.success_rate(bar) == pytest.approx(100 * 2 / 12)
    both = picture.together([bar, picture.bar(BEGIN + HOUR, BEGIN + 2 * HOUR, [], is_sample=False)])
    assert (both.total, both.is_sample, both.end) == (5, True, BEGIN + 2 * HOUR)
