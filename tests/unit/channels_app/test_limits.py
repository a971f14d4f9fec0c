"""The rate limiter keeps the rate in every window and says how long to wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core.rate_limits import Rate, decide
from tests.support.properties import quick

START = 1_700_000_000.0
ROUNDING_S = 2e-5
RATES = st.builds(Rate, per_second=st.floats(0.01, 1000), burst=st.integers(1, 50))
GAPS = st.lists(st.floats(0, 2) | st.sampled_from([0.0, 0.001, 0.1]), min_size=1, max_size=120)


def allowed_instants(rate: Rate, gaps: list[float]) -> list[float]:
    arrival, now, allowed = 0.0, START, []
    for gap in gaps:
        now += gap
        fits, arrival, _ = decide(arrival, now, rate)
        if fits:
            allowed.append(now)
    return allowed


@quick
@given(RATES, GAPS)
def test_no_window_holds_more_than_burst_and_rate(rate: Rate, gaps: list[float]) -> None:
    allowed = allowed_instants(rate, gaps)
    for first, start in enumerate(allowed):
        for last in range(first, len(allowed)):
            window = allowed[last] - start
            # Rounding error of Unix seconds as floats, 50 times in a burst.
            assert last - first + 1 <= rate.burst + (window + ROUNDING_S) * rate.per_second


@quick
@given(RATES)
def test_a_rested_limiter_lets_the_whole_burst_through_and_no_more(rate: Rate) -> None:
    assert len(allowed_instants(rate, [0.0] * (rate.burst + 5))) == rate.burst


@quick
@given(RATES, GAPS)
def test_waiting_as_instructed_succeeds_and_not_earlier(rate: Rate, gaps: list[float]) -> None:
    arrival, now = 0.0, START
    for gap in gaps:
        now += gap
        fits, new_arrival, wait = decide(arrival, now, rate)
        if fits:
            assert wait == 0
        else:
            assert wait > 0
            assert new_arrival == arrival, "a refusal costs nothing"
            assert decide(arrival, now + wait, rate)[0]
            if wait > ROUNDING_S:
                assert not decide(arrival, now + wait - ROUNDING_S, rate)[0]
        arrival = new_arrival


def test_a_steady_sender_at_the_rate_is_never_refused() -> None:
    rate = Rate(per_second=8, burst=1)
    assert len(allowed_instants(rate, [0.125] * 200)) == 200


def test_a_steady_sender_at_twice_the_rate_gets_half_through() -> None:
    rate = Rate(per_second=8, burst=1)
    assert len(allowed_instants(rate, [0.0625] * 200)) == 100


def test_the_wait_is_in_seconds() -> None:
    rate = Rate(per_second=0.5, burst=2)
    arrival = 0.0
    for _ in range(2):
        fits, arrival, _ = decide(arrival, START, rate)
        assert fits
    for elapsed, left in [(0.0, 2.0), (1.5, 0.5)]:
        fits, _, wait = decide(arrival, START + elapsed, rate)
        assert not fits
        assert wait == pytest.approx(left)
