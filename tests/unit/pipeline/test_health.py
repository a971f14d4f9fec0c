"""Health scores: Wilson's bound as published, and what raises and lowers a score."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.core.outcome import Outcome
from pipeline.core import health
from pipeline.core.health import Measures, burn_rate, recency, score, wilson

COUNTS = st.integers(0, 10**6)
SINCE = datetime(2026, 11, 22, 4, 20, tzinfo=UTC)


def measured(delivered: int, *, hour: int = 0, retries: int = 0, **failed: int) -> Measures:
    made = Measures()
    for name, count in {"delivered": delivered, **failed}.items():
        weight = recency(hour)
        made.add(name, 20, count, retries, count * weight, count * weight**2)
    return made


def test_outcomes_are_those_of_the_broker() -> None:
    every = set(Outcome)
    assert {name for name in every if name.is_success} == health.ARRIVED
    assert {name for name in every if not name.charged and not name.is_success} < (
        health.BROKERS_OWN
    )
    assert every > health.BROKERS_OWN | health.UNREACHABLE
    assert not health.BROKERS_OWN & health.UNREACHABLE


@pytest.mark.parametrize(
    ("seen", "trials", "bound"),
    [
        # Newcombe, Statistics in Medicine 17, 1998, table I, method 3, 95 %.
        (81, 263, 0.2553),
        (15, 148, 0.0624),
        (0, 20, 0.0),
        (1, 29, 0.0061),
        (29, 29, 0.8830),
    ],
)
def test_the_bound_is_the_published_one(seen: int, trials: int, bound: float) -> None:
    assert wilson(seen / trials, trials, z=1.959964) == pytest.approx(bound, abs=5e-5)


@given(st.floats(0, 1), st.floats(0, 1e12))
def test_the_bound_is_below_the_rate(rate: float, trials: float) -> None:
    assert 0 <= wilson(rate, trials) <= rate + 1e-9


@given(COUNTS, COUNTS, COUNTS)
def test_a_score_is_of_a_hundred(delivered: int, refused: int, unreachable: int) -> None:
    made = measured(delivered, server_error=refused, connection_refused=unreachable)
    told = score(made)
    assert told is None if not made.attempts else told is not None and 0 <= told <= 100


@given(st.integers(1, 10**5), COUNTS)
def test_more_failures_never_raise_a_score(delivered: int, failed: int) -> None:
    less, more = (score(measured(delivered, server_error=n)) for n in (failed, failed + 1))
    assert less is not None
    assert more is not None
    assert more <= less


def test_what_reached_nobody_weighs_more() -> None:
    refused = score(measured(500, server_error=500))
    nobody = score(measured(500, connection_refused=500))
    assert (refused, nobody) == (48, 36)


def test_young_attempts_weigh_more() -> None:
    better, worse = measured(100, hour=0), measured(0, hour=0, server_error=100)
    for made, late in ((better, "server_error"), (worse, "delivered")):
        weight = recency(12)
        made.add(late, 20, 100, 0, 100 * weight, 100 * weight**2)

    assert recency(0) == 4 * recency(12) == 1000
    assert (score(better), score(worse)) == (75, 16)


def test_few_attempts_prove_little() -> None:
    assert [score(measured(n)) for n in (1, 10, 100, 10_000)] == [38, 86, 98, 100]
    assert score(Measures()) is None


def test_a_budget_burns_as_fast_as_it_may_at_one() -> None:
    assert burn_rate(measured(999, server_error=1), 99.9) == pytest.approx(1)
    assert burn_rate(measured(900, server_error=100), 99) == pytest.approx(10)
    assert burn_rate(Measures(), 99.9) is None


@pytest.mark.parametrize(
    ("day", "before", "down", "told"),
    [
        (Measures(), measured(9), None, "nothing was sent"),
        (measured(100), measured(100), None, "well"),
        (measured(3), Measures(), None, "well, as far as so few attempts tell"),
        (
            measured(90, server_error=10),
            Measures(),
            None,
            "10.00% of attempts failed, mostly server error",
        ),
        (
            measured(90, server_error=4, dns_error=6),
            Measures(),
            None,
            "6.00% of attempts reached nobody, mostly dns error",
        ),
        (
            measured(0, unavailable=7, timeout=7),
            Measures(),
            SINCE,
            "down since 2026-11-22 04:20 UTC, mostly timeout",
        ),
    ],
)
def test_a_score_has_a_reason(
    day: Measures, before: Measures, down: datetime | None, told: str
) -> None:
    reason = health.reason(day, before, down_since=down, burn_1h=0.5, burn_6h=None)
    assert reason == told


def test_slow_is_a_reason_too() -> None:
    day, before = measured(100), Measures()
    before.add("delivered", 12, 100, 0, 1, 1)
    told = health.reason(day, before, down_since=None, burn_1h=None, burn_6h=None)
    assert told == "slow: p95 is 38 ms, in the 7 days before it was 9 ms"


def test_a_budget_that_burns_fast_is_said() -> None:
    day = measured(90, server_error=10)
    told = health.reason(day, day, down_since=None, burn_1h=100.0, burn_6h=20.0)
    assert told.endswith("; in the last hour its error budget went 100 times too fast")
    calm = health.reason(day, day, down_since=None, burn_1h=100.0, burn_6h=5.0)
    assert "budget" not in calm
