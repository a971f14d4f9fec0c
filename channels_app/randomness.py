"""Random delays, which spread in time what would otherwise happen at once."""

from random import random


def jitter() -> float:
    """Evenly in [0, 1), for the waits between retries (`rules.backoff.delay`)."""
    return random()  # noqa: S311 (spreads retries, keeps no secret)
