"""Derive an acknowledgement timeout from how long acknowledgements took (S3-30)."""

import math
from collections.abc import Sequence

SHARE = 0.99
"""Of the acknowledgements that came, so many came within what is waited for."""
MARGIN = 1.5
"""On top of that. What comes after the wait is not seen: with a margin the wait follows a consumer
that becomes slower."""
MIN_SAMPLES = 20
"""With fewer than these the upper bound is waited for."""


def wait_ms(took_ms: Sequence[float], silent_count: int, *, low: float, high: float) -> float:
    """How long to wait, between ``low`` and ``high``.

    ``took_ms`` are the times of recent acknowledgements, ``silent_count`` recent deliveries about
    which nobody said anything in time. Where those are the most, nothing is known of how long it
    takes: the consumer may have become slower than the wait.
    """
    if len(took_ms) < MIN_SAMPLES or silent_count > len(took_ms):
        return high
    within = sorted(took_ms)[math.ceil(SHARE * len(took_ms)) - 1]
    return min(high, max(low, MARGIN * within))
