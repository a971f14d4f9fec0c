"""Provide random delays, which spread over time what would otherwise happen at once."""

from random import random


def jitter() -> float:
    """Uniform in [0, 1), for the delays between retries (`core.backoff.delay`)."""
    return random()  # noqa: S311 (spreads retries, keeps no secret)
