"""A consumer may request a delay: it is capped, and costs no delivery an attempt."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels_app.core import backoff
from channels_app.core.backoff import MAX_DELAY_S, PRESETS, SPREAD, Policy
from delivery.core import lifecycle
from delivery.core.breaker import SLOW_CAP_S, Circuit, may_send, slowed
from delivery.core.lifecycle import DeliveryState, Reason
from delivery.core.outcome import RETRY_AFTER_CAP_S, Outcome, parse_retry_after
from tests.support.properties import quick

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PATIENCE_S = 7 * 86_400
RETRIED = [
    outcome
    for outcome in Outcome
    if outcome.charged and outcome not in (Outcome.GONE, Outcome.EXPIRED, Outcome.BODY_UNREADABLE)
]
FORMS: dict[str, Callable[[datetime], str]] = {
    "IMF-fixdate": lambda then: format_datetime(then, usegmt=True),
    "RFC 850": lambda then: f"{then:%A, %d-%b-%y %H:%M:%S} GMT",
    "asctime": lambda then: f"{then:%a %b} {then.day:2d} {then:%H:%M:%S %Y}",
    "with a zone": format_datetime,
}
"""The formats that RFC 9110 requires, and the one of mail programs."""
GARBAGE = [
    *("-1", "-86400", "+5", "1,5", "1e9", "inf", "nan", "0x10", "1_000", "٣", "½", "soon", ","),
    *("120, 60", "120;60", "Sun, 31 Feb 2026 12:00:00 GMT", "Sun, 01 Mar 2026 25:61:61 GMT"),
    *("Sun, 01 Mar 2026 12:00:00 +9999999999", "Sun, 01 Mar 99999 12:00:00 GMT", "GMT"),
]
NEAR_DATES = st.integers(-2 * PATIENCE_S, 2 * PATIENCE_S).map(
    lambda seconds: NOW + timedelta(seconds=seconds)
)
ANY_DATES = st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 31)).map(
    lambda then: then.replace(microsecond=0, tzinfo=UTC)
)
WISHES = (
    st.none()
    | st.integers(-10, 2 * PATIENCE_S).map(str)
    | st.text("0123456789.", max_size=70)
    | st.builds(lambda form, then: FORMS[form](then), st.sampled_from([*FORMS]), NEAR_DATES)
    | st.builds(lambda form, then: FORMS[form](then), st.sampled_from([*FORMS]), ANY_DATES)
    | st.sampled_from(GARBAGE)
    | st.text(max_size=70)
    | st.text("SunMar 0129:,+-GT", max_size=40)
)
"""Any value of the header that a consumer may send."""
POLICIES = st.sampled_from(list(PRESETS.values())) | st.lists(
    st.floats(0, MAX_DELAY_S), min_size=1, max_size=9
).map(backoff.parse_policy)
JITTER = st.floats(0, 1, exclude_max=True)


def capped(seconds: float) -> float:
    return min(max(seconds, 0.0), RETRY_AFTER_CAP_S)


@settings(quick, max_examples=200)
@given(WISHES)
def test_retry_after_is_between_zero_and_a_day(value: str | None) -> None:
    seconds = parse_retry_after(value, NOW)
    assert seconds is None or 0 <= seconds <= RETRY_AFTER_CAP_S


@quick
@given(st.integers(0, 10**60), st.sampled_from(["", " ", "\t"]))
def test_retry_after_seconds_are_obeyed_up_to_a_day(seconds: int, blank: str) -> None:
    assert parse_retry_after(f"{blank}{seconds}{blank}", NOW) == capped(seconds)


@quick
@given(st.decimals(0, 2 * PATIENCE_S, places=3))
def test_retry_after_in_fractions_is_never_shortened(seconds: Decimal) -> None:
    wish = parse_retry_after(f"{seconds:f}", NOW)
    assert wish is not None
    assert capped(float(seconds)) <= wish < capped(float(seconds)) + 1


@quick
@given(st.sampled_from([*FORMS]), NEAR_DATES)
def test_a_retry_after_date_is_obeyed_up_to_a_day(form: str, then: datetime) -> None:
    assert parse_retry_after(FORMS[form](then), NOW) == capped((then - NOW).total_seconds())


@pytest.mark.parametrize("value", GARBAGE)
def test_an_invalid_retry_after_is_ignored(value: str) -> None:
    assert parse_retry_after(value, NOW) is None


@quick
@given(
    POLICIES,
    st.integers(1, 10),
    st.lists(st.tuples(st.sampled_from(RETRIED), WISHES, JITTER), min_size=10, max_size=10),
)
def test_no_retry_after_shortens_a_wait_or_uses_an_attempt(
    policy: Policy, most: int, answers: list[tuple[Outcome, str | None, float]]
) -> None:
    """Simulate a whole delivery whose consumer answers each attempt differently."""
    for failures, (outcome, value, jitter) in enumerate(answers):
        wish = parse_retry_after(value, NOW)
        move = lifecycle.after_attempt(
            outcome,
            failure_count=failures,
            attempt_count=failures + 1,
            max_attempts=most,
            policy=policy,
            retry_after=wish,
            jitter=jitter,
        )
        if failures + 1 == backoff.allowed_attempts(policy, most):
            assert (move.state, move.reason) == (DeliveryState.DEAD, Reason.EXHAUSTED)
            assert move.due_in is None
            return
        plain = backoff.delay(policy, failures + 1, jitter)
        assert move.state is DeliveryState.QUEUED
        assert move.due_in == max(plain, wish or 0.0)
        assert 0 <= move.due_in <= max(MAX_DELAY_S * (1 + SPREAD), RETRY_AFTER_CAP_S) + 1e-6
    raise AssertionError("it was never given up")


@quick
@given(st.lists(st.tuples(WISHES, st.floats(0, 100)), min_size=1, max_size=20))
def test_no_retry_after_pauses_a_consumer_for_more_than_a_minute(
    answers: list[tuple[str | None, float]],
) -> None:
    circuit, now = Circuit(), NOW.timestamp()
    for value, gap in answers:
        wish = parse_retry_after(value, NOW)
        circuit = slowed(circuit, now, wish)
        assert circuit.slow_until is not None
        assert now + min(wish or 0.0, SLOW_CAP_S) <= circuit.slow_until <= now + SLOW_CAP_S
        assert may_send(circuit, circuit.slow_until) == "yes"
        now += gap
