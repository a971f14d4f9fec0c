"""Histograms of pipeline and console: each duration and percentile is in the right bucket."""

import math
from collections import Counter as Tally

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contract.histogram import bounds, bucket, percentile

DURATIONS = st.integers(min_value=1, max_value=2**31 - 1)


@given(DURATIONS)
def test_a_duration_lies_within_its_bucket(ms: int) -> None:
    low, high = bounds(bucket(ms))
    assert low <= ms * (1 + 1e-12)
    assert ms < high


@pytest.mark.parametrize("power", range(31))
def test_a_power_of_two_begins_a_doubling(power: int) -> None:
    assert bucket(2**power) == 4 * power
    assert power == 0 or bucket(2**power - 1) < 4 * power
    assert bounds(4 * power)[0] == 2**power


def test_nothing_is_shorter_than_a_millisecond() -> None:
    assert bucket(0) == bucket(1) == 0


@given(st.lists(DURATIONS, min_size=1, max_size=200), st.sampled_from([1, 50, 95, 99, 100]))
def test_a_percentile_is_right_within_one_bucket(times: list[int], percent: int) -> None:
    exact = sorted(times)[max(1, math.ceil(len(times) * percent / 100)) - 1]
    told = percentile(Tally(map(bucket, times)), percent)

    assert told is not None
    low, high = bounds(bucket(exact))
    assert low <= told < high


@given(st.lists(DURATIONS, min_size=1), st.lists(DURATIONS))
def test_histograms_of_two_hours_add_up(one: list[int], other: list[int]) -> None:
    both = Tally(map(bucket, one)) + Tally(map(bucket, other))
    assert percentile(both, 95) == percentile(Tally(map(bucket, one + other)), 95)


def test_nothing_has_no_percentile() -> None:
    assert percentile({}, 50) is None
    assert percentile({7: 0}, 50) is None
