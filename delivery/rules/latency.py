"""Sort latencies into a few buckets and compute quantiles from them."""

from collections.abc import Sequence

BOUNDS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 30_000, 60_000),
    *(300_000, 1_800_000, 7_200_000, 43_200_000, 259_200_000),
)
"""Inclusive upper bounds of the buckets; one more bucket holds values above the last."""
BUCKETS = len(BOUNDS_MS) + 1
UNITS = (("d", 86_400_000, 2), ("h", 3_600_000, 2), ("min", 60_000, 2), ("s", 1000, 1))
"""Units for display: name, milliseconds, and the smallest multiple shown in the unit."""


def quantile_ms(counts: Sequence[int], share: float) -> float | None:
    """Return the latency that a ``share`` (0 to 1) of all values do not exceed.

    Returns None without values. Assumes that values are spread evenly within a bucket. Values above
    the last bound count as it.
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    seen, lower = 0, 0
    for count, upper in zip(counts, BOUNDS_MS, strict=False):
        if seen + count >= wanted:
            return lower + (upper - lower) * (wanted - seen) / count
        seen, lower = seen + count, upper
    return float(BOUNDS_MS[-1])


def in_words(ms: float | None) -> str:
    """Return a duration as text in a suitable unit."""
    if ms is None:
        return "-"
    for unit, length, least in UNITS:
        if ms >= least * length:
            return f"{ms / length:.3g} {unit}"
    return f"{ms:.3g} ms"
