"""Chance: what spreads in time that which would otherwise come all at once."""

from random import random


def jitter() -> float:
    """Evenly in [0, 1), for the waits between retries (`rules.backoff.delay`)."""
    return random()  # noqa: S311 (spreads retries, keeps no secret)
