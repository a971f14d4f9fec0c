"""Bars and percentiles of the page Health."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.core import timing
from delivery.core.timing import DeliveryFate
from tests.support.properties import quick

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@quick
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=300), st.sampled_from([50, 95, 99]))
def test_a_percentile_is_the_nearest_rank(values: list[int], share: int) -> None:
    values.sort()
    found = timing.percentile(values, share / 100)
    assert found is not None
    fitting = [value for value in values if 100 * _up_to(values, value) >= share * len(values)]
    assert found == min(fitting)


def _up_to(values: list[int], limit: int) -> int:
    return sum(value <= limit for value in values)


def test_an_empty_sample_has_no_percentile_and_no_rate() -> None:
    assert timing.percentile([], 0.5) is None
    assert timing.success_rate(timing.bar(BEGIN, BEGIN + HOUR, [], is_sample=False)) is None


def test_a_bar_counts_each_outcome() -> None:
    fates = [
        DeliveryFate("delivered", 1, 30),
        DeliveryFate("delivered", 3, 10),
        DeliveryFate("dead", 5),
        DeliveryFate("queued", 2),
        DeliveryFate("in_flight", 1),
    ]
    bar = timing.bar(BEGIN, BEGIN + HOUR, fates, is_sample=True)
    assert (bar.first, bar.later, bar.dead, bar.waiting) == (1, 1, 1, 2)
    assert bar.answers == (10, 30)
    assert timing.success_rate(bar) == pytest.approx(100 * 2 / 12)
    both = timing.together([bar, timing.bar(BEGIN + HOUR, BEGIN + 2 * HOUR, [], is_sample=False)])
    assert (both.total, both.is_sample, both.end) == (5, True, BEGIN + 2 * HOUR)
