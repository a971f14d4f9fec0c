"""Quantiles of durations that were counted in buckets."""

import pytest

from delivery.core.timing import BOUNDS_MS, BUCKETS, quantile_ms


def counted(**counts: int) -> list[int]:
    """Return counts by upper bound, given as ``ms10=3``."""
    found = [0] * BUCKETS
    for name, count in counts.items():
        found[BOUNDS_MS.index(int(name.removeprefix("ms")))] = count
    return found


def test_an_empty_histogram_has_no_quantile() -> None:
    assert quantile_ms([0] * BUCKETS, 0.5) is None


@pytest.mark.parametrize(("share", "ms"), [(0.25, 15.0), (0.5, 20.0), (0.75, 35.0), (1.0, 50.0)])
def test_quantiles_interpolate_within_a_bucket(share: float, ms: float) -> None:
    assert quantile_ms(counted(ms20=4, ms50=4), share) == ms


def test_quantiles_above_the_last_bound_are_equal() -> None:
    assert quantile_ms([0] * len(BOUNDS_MS) + [7], 0.5) == BOUNDS_MS[-1]


def test_quantiles_increase_with_the_share() -> None:
    counts = [3, 0, 5, 0, 0, 8, 1, *[0] * (BUCKETS - 8), 2]
    found = [quantile_ms(counts, share / 20) or 0.0 for share in range(1, 21)]
    assert found == sorted(found)
