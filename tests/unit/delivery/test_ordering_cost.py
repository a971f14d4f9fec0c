"""The cost of ordering: the formulas compared with simulations (S3-41)."""

import heapq
import math
from collections import deque
from random import Random

import pytest

from delivery.core import ordering
from delivery.core.ordering import Cost, OrderingLoad

WITHIN = 0.2
"""Allowed relative error of the formulas, as the requirement states."""


def named(load: OrderingLoad, name: str) -> Cost:
    return next(cost for cost in ordering.costs(load) if cost.name == name)


def crowded(keys: int, slots: int, answer_ms: float, hold_ms: float) -> float:
    """Return messages per second, where every key has a backlog and open requests are limited."""
    ready, slot_ends, held = deque(range(keys)), [0.0] * slots, list[tuple[float, int]]()
    sent, now = 0, 0.0
    end = 1000 * hold_ms
    while now < end:
        slot = heapq.heappop(slot_ends)
        now = max(now, slot)
        while held and (held[0][0] <= now or not ready):
            at, key = heapq.heappop(held)
            now = max(now, at)
            ready.append(key)
        heapq.heappush(slot_ends, now + answer_ms)
        heapq.heappush(held, (now + hold_ms, ready.popleft()))
        sent += 1
    return sent / now * 1000


def waited(keys: int, per_second: float, hold_ms: float) -> float:
    """Return the mean time in ms that a message waits for its key, with random arrivals."""
    random, now, total, count = Random(20261122), 0.0, 0.0, 100_000
    free = [0.0] * keys
    for _ in range(count):
        now += random.expovariate(per_second / 1000)
        key = random.randrange(keys)
        total += max(0.0, free[key] - now)
        free[key] = max(free[key], now) + hold_ms
    return total / count


@pytest.mark.seed("S3-41")
@pytest.mark.parametrize(("keys", "slots"), [(1, 64), (10, 64), (50, 10), (500, 100)])
def test_estimated_throughput_equals_the_simulated(keys: int, slots: int) -> None:
    load = OrderingLoad(keys=keys, answer_ms=100, max_in_flight=slots)
    counted = crowded(keys, slots, 100, 110)
    assert named(load, "ordered keys").per_second == pytest.approx(counted, rel=WITHIN)
    alone = crowded(1, slots, 100, 110)
    assert named(load, "one key (fifo)").per_second == pytest.approx(alone, rel=WITHIN)


@pytest.mark.seed("S3-41")
@pytest.mark.parametrize("per_second", [10, 45, 80])
def test_estimated_wait_equals_the_simulated(per_second: float) -> None:
    load = OrderingLoad(keys=10, answer_ms=90, max_in_flight=64, per_second=per_second)
    counted = waited(10, per_second, 100)
    assert named(load, "ordered keys").wait_ms == pytest.approx(counted, rel=WITHIN)


def test_lost_acknowledgements_hold_a_key_for_their_whole_wait() -> None:
    load = OrderingLoad(
        keys=100, answer_ms=90, max_in_flight=1000, ack_ms=200, lost=0.1, timeout_ms=1000
    )
    found = named(load, "acknowledged keys")
    assert found.hold_ms == pytest.approx(100 + 0.9 * 200 + 0.1 * 1000)
    assert found.per_second == pytest.approx(100 * 1000 / found.hold_ms)
    assert [cost.name for cost in ordering.costs(OrderingLoad(1, 100, 1))] == [
        "no order",
        "ordered keys",
        "one key (fifo)",
    ]


def test_ordered_throughput_is_at_most_the_unordered() -> None:
    for most in (math.inf, 300):
        load = OrderingLoad(keys=25_000, answer_ms=100, max_in_flight=64, most_per_second=most)
        plain, *others = (cost.per_second for cost in ordering.costs(load))
        assert plain == min(640, most)
        assert max(others) <= plain


def test_an_overloaded_key_never_catches_up() -> None:
    load = OrderingLoad(keys=1, answer_ms=90, max_in_flight=64, per_second=10)
    assert named(load, "ordered keys").wait_ms == math.inf
    assert ordering.in_flight(OrderingLoad(25_000, 100, 64, per_second=25_000)) == 2500
