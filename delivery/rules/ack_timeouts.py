"""Derive an acknowledgement timeout from how long acknowledgements took (S3-30)."""

import math
from collections.abc import Sequence

SHARE = 0.99
"""Share of past acknowledgements that must have arrived within the timeout."""
MARGIN = 1.5
"""Factor on that time. Acknowledgements after the timeout are not measured, so this margin lets the
timeout grow when a consumer becomes slower."""
MIN_SAMPLES = 20
"""With fewer samples the upper bound is the timeout."""


def wait_ms(took_ms: Sequence[float], silent_count: int, *, low: float, high: float) -> float:
    """Return the timeout in milliseconds, between ``low`` and ``high``.

    ``took_ms`` are the times of recent acknowledgements, ``silent_count`` is the number of recent
    deliveries without one. If these are the majority the times say nothing: the consumer may have
    become slower than the timeout.
    """
    if len(took_ms) < MIN_SAMPLES or silent_count > len(took_ms):
        return high
    within = sorted(took_ms)[math.ceil(SHARE * len(took_ms)) - 1]
    return min(high, max(low, MARGIN * within))
