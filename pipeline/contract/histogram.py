"""A histogram of durations with four buckets per doubling, whose counts add up.

A bucket is ``floor(4 log2(ms))``. Percentiles are by nearest rank: the bucket is the one that
contains the exact percentile, and the place within it is estimated. They are therefore off by at
most 19 %, also after any number of histograms were added.
"""

from collections.abc import Mapping

PER_DOUBLING = 4


def bucket(ms: int) -> int:
    """Return the bucket of a duration; less than a millisecond counts as one.

    Uses integers, since a logarithm may fall short of a power of two.
    """
    return int(max(1, ms) ** PER_DOUBLING).bit_length() - 1


def bounds(place: int) -> tuple[float, float]:
    """Return the lower and upper bound of a bucket in milliseconds; it excludes the upper one."""
    return 2 ** (place / PER_DOUBLING), 2 ** ((place + 1) / PER_DOUBLING)


def percentile(counts: Mapping[int, int], percent: int) -> float | None:
    """Return the given percentile in milliseconds; None without values."""
    rank = -(-percent * sum(counts.values()) // 100)
    seen = 0
    for place in sorted(counts):
        count = counts[place]
        if count and seen + count >= rank:
            # Values in a bucket are assumed to be spread evenly over its logarithm.
            return float(2 ** ((place + (max(1, rank) - seen - 0.5) / count) / PER_DOUBLING))
        seen += count
    return None
