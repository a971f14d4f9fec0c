"""Histogram: durations in four buckets a doubling, which add up, and percentiles of their sums.

A bucket is ``floor(4 log2(ms))``. Percentiles are by nearest rank: the bucket is the one in which
the exact percentile lies, the place within it is a guess. So they are off by 19 % at most, and as
much after any number of histograms were added.
"""

from collections.abc import Mapping

PER_DOUBLING = 4


def bucket(ms: int) -> int:
    """Where a duration belongs. In whole numbers, since a logarithm may fall short of a power of
    two; what took less than a millisecond counts as one."""
    return int(max(1, ms) ** PER_DOUBLING).bit_length() - 1


def bounds(place: int) -> tuple[float, float]:
    """From how many milliseconds a bucket reaches up to how many; these are in the next one."""
    return 2 ** (place / PER_DOUBLING), 2 ** ((place + 1) / PER_DOUBLING)


def percentile(counts: Mapping[int, int], percent: int) -> float | None:
    """The milliseconds within which so many percent lie; None where there are none."""
    rank = -(-percent * sum(counts.values()) // 100)
    seen = 0
    for place in sorted(counts):
        count = counts[place]
        if count and seen + count >= rank:
            # The rows of a bucket are taken to be spread evenly over its logarithm.
            return float(2 ** ((place + (max(1, rank) - seen - 0.5) / count) / PER_DOUBLING))
        seen += count
    return None
