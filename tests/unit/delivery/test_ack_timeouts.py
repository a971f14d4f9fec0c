"""The acknowledgement timeout, in a simulation that loses acknowledgements (S3-30)."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.core import acks
from delivery.core.acks import MIN_SAMPLES, wait_ms

LOW, HIGH = 50.0, 2000.0
RECENT = 200


class Came(NamedTuple):
    """Result of the simulation for the messages of one consumer."""

    waited_ms: float
    """Total wait for acknowledgements that never came."""
    too_soon: int
    """Messages whose acknowledgement came after the timeout."""
    last_ms: float
    """The timeout at the end."""


def simulate(
    took: Callable[[Random, int], float], wait: Callable[[list[float], int], float]
) -> Came:
    """Simulate 10,000 messages; 12 % of the acknowledgements are lost."""
    random = Random(20261122)
    seen: deque[float | None] = deque(maxlen=RECENT)
    waited = 0.0
    too_soon, now_ms = 0, HIGH
    for number in range(10_000):
        if number % 20 == 0:  # recomputed from time to time, as the pump does
            heard = [it for it in seen if it is not None]
            now_ms = wait(heard, len(seen) - len(heard))
        took_ms = took(random, number)
        if random.random() < 0.12:
            waited += now_ms
            seen.append(None)
        elif took_ms > now_ms:
            too_soon += 1
            seen.append(None)
        else:
            seen.append(took_ms)
    return Came(waited, too_soon, now_ms)


def adaptive(heard: list[float], silent: int) -> float:
    return wait_ms(heard, silent, low=LOW, high=HIGH)


def usual(random: Random, number: int) -> float:
    """Return a time in ms: the median is 100, the 99th percentile 320."""
    return random.lognormvariate(4.605, 0.5)


def much_slower(random: Random, number: int) -> float:
    """Return a time in ms that is eight times as long in the second half."""
    return usual(random, number) * (8 if number > 5000 else 1)


@pytest.mark.seed("S3-30")
@pytest.mark.parametrize("fixed_ms", [1000.0, 2000.0])
def test_adaptive_timeout_waits_less_than_a_fixed_one(fixed_ms: float) -> None:
    fixed = simulate(usual, lambda heard, silent: fixed_ms)
    came = simulate(usual, adaptive)
    assert came.waited_ms < 0.6 * fixed.waited_ms
    assert came.too_soon < 0.01 * 10_000, "order is kept for nearly all"
    assert 320 < came.last_ms < 800


@pytest.mark.seed("S3-30")
def test_adaptive_timeout_follows_a_slower_consumer() -> None:
    came = simulate(much_slower, adaptive)
    assert came.last_ms > 1500
    assert came.too_soon < 0.08 * 10_000


def test_adaptive_timeout_is_long_with_little_data() -> None:
    assert wait_ms([], 0, low=LOW, high=HIGH) == HIGH
    assert wait_ms([100.0] * (MIN_SAMPLES - 1), 0, low=LOW, high=HIGH) == HIGH
    assert wait_ms([100.0] * MIN_SAMPLES, 0, low=LOW, high=HIGH) == acks.MARGIN * 100
    assert wait_ms([100.0] * MIN_SAMPLES, MIN_SAMPLES + 1, low=LOW, high=HIGH) == HIGH


@given(
    took=st.lists(st.floats(-1e4, 1e9)),
    silent=st.integers(0, 1000),
    low=st.floats(10, 1000),
    more=st.floats(0, 1e6),
)
def test_adaptive_timeout_stays_within_bounds(
    took: list[float], silent: int, low: float, more: float
) -> None:
    assert low <= wait_ms(took, silent, low=low, high=low + more) <= low + more
