"""Retry delays stay within their bounds, grow, and add up to the total that users are shown."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core.backoff import (
    MAX_DELAY_S,
    PRESETS,
    Exponential,
    Policy,
    Steps,
    allowed_attempts,
    delay,
    parse_policy,
    total,
)
from tests.support.properties import quick

HOUR = 3600.0
JITTER = st.floats(0, 1, exclude_max=True)
SECONDS = st.floats(0, MAX_DELAY_S)
STEPS = st.lists(SECONDS, min_size=1, max_size=100).map(parse_policy)
EXPONENTIAL = st.tuples(SECONDS, st.floats(1, 100), SECONDS).map(
    lambda v: parse_policy({"base": min(v[0], v[2]), "factor": v[1], "cap": max(v[0], v[2])})
)
POLICIES = st.sampled_from(list(PRESETS.values())) | STEPS | EXPONENTIAL


@quick
@given(POLICIES, st.integers(0, 100_000), JITTER)
def test_a_delay_stays_within_a_fifth_of_its_plain_value(
    policy: Policy, failures: int, jitter: float
) -> None:
    middle = delay(policy, failures, 0.5)
    assert 0 <= middle <= MAX_DELAY_S * 1.000001
    assert middle * 0.799999 <= delay(policy, failures, jitter) <= middle * 1.200001


@quick
@given(EXPONENTIAL, st.integers(1, 5000))
def test_exponential_delays_never_shrink_and_keep_their_cap(policy: Policy, failures: int) -> None:
    assert isinstance(policy, Exponential)
    now, next_one = delay(policy, failures, 0.5), delay(policy, failures + 1, 0.5)
    assert now <= next_one <= policy.cap * 1.000001


@quick
@given(POLICIES, st.integers(1, 50))
def test_total_is_the_sum_of_the_delays_between_attempts(policy: Policy, attempts: int) -> None:
    delays = [delay(policy, n, 0.5) for n in range(1, allowed_attempts(policy, attempts))]
    assert total(policy, attempts) == pytest.approx(sum(delays))


def test_jitter_spreads_over_the_whole_range() -> None:
    policy = Steps((100.0,))
    assert delay(policy, 1, 0.0) == pytest.approx(80)
    assert delay(policy, 1, 0.5) == pytest.approx(100)
    assert delay(policy, 1, 0.999999) == pytest.approx(120, abs=0.001)


def test_the_last_step_repeats() -> None:
    policy = Steps((1.0, 2.0))
    assert [delay(policy, n, 0.5) for n in (0, 1, 2, 3, 99)] == [1, 1, 2, 2, 2]


def test_the_default_goes_from_5_seconds_to_14_hours_in_about_three_days() -> None:
    policy = parse_policy(None)
    assert policy == parse_policy("exponential")
    plain = [delay(policy, failures, 0.5) for failures in range(1, 10)]
    assert plain == pytest.approx([5, 50, 500, 5_000, 50_000] + [14 * HOUR] * 4)
    assert 71 * HOUR < total(policy, 10) < 72 * HOUR


def test_the_standard_preset_is_the_recommended_schedule() -> None:
    assert total(PRESETS["standard"], 10) == 75 * HOUR + 35 * 60 + 5


def test_the_fast_preset_gives_up_within_minutes() -> None:
    assert PRESETS["fast"] == Steps((5.0, 30.0, 60.0, 60.0, 60.0))


def test_delay_of_a_policy_without_delays_is_none_at_all() -> None:
    assert delay(PRESETS["once"], 1, 0.5) == 0


def test_once_never_retries() -> None:
    assert allowed_attempts(PRESETS["once"], 10) == 1
    assert allowed_attempts(PRESETS["fast"], 10) == 10
    assert total(PRESETS["once"], 10) == 0


def test_an_endless_exponential_does_not_overflow() -> None:
    assert delay(Exponential(1.0, 100.0, 60.0), 100_000, 0.5) == 60


def test_valid_policies_are_parsed() -> None:
    assert parse_policy("fast") == PRESETS["fast"]
    assert parse_policy([5, 30.5]) == Steps((5.0, 30.5))
    assert parse_policy({"base": 1, "factor": 2, "cap": 60}) == Exponential(1.0, 2.0, 60.0)


def test_parse_policy_at_its_limits_accepts() -> None:
    longest = MAX_DELAY_S
    assert parse_policy([longest] * 100) == Steps((longest,) * 100)
    assert parse_policy({"base": 0, "factor": 1, "cap": 0}) == Exponential(0.0, 1.0, 0.0)
    widest = {"base": longest, "factor": 100, "cap": longest}
    assert parse_policy(widest) == Exponential(longest, 100.0, longest)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (5, "The retry policy must be a preset's name, a list of seconds or an object."),
        (
            "never",
            "There is no retry preset 'never'; choose from exponential, standard, fast, once.",
        ),
        ([], "A list of retry delays has 1 to 100 entries."),
        ([-1], "Each retry delay must be a number of seconds from 0 to 604800."),
        ({}, "A retry object has exactly the fields base, factor and cap."),
        (
            {"base": -1, "factor": 2, "cap": 60},
            "base must be a number of seconds from 0 to 604800.",
        ),
        ({"base": 1, "factor": 2, "cap": -1}, "cap must be a number of seconds from 0 to 604800."),
        ({"base": 1, "factor": 0, "cap": 60}, "factor must be a number from 1 to 100."),
        ({"base": 61, "factor": 2, "cap": 60}, "base must not be above cap."),
    ],
)
def test_parse_policy_of_a_wrong_value_names_what_is_wrong(value: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        parse_policy(value)


NO_DELAYS = (float("nan"), float("inf"), 10**400, MAX_DELAY_S + 1, "5", None, True)


@pytest.mark.parametrize(
    "value",
    [
        *("", [1] * 101, True, b"fast"),
        *([wrong] for wrong in NO_DELAYS),
        {"base": 1, "factor": 2},
        {"base": 1, "factor": 2, "cap": 60, "jitter": 1},
        {"base": "1", "factor": 2, "cap": 60},
        *({"base": 1, "factor": factor, "cap": 60} for factor in (0.5, 101, None)),
    ],
)
def test_invalid_values_are_refused_with_an_error_message(value: object) -> None:
    with pytest.raises(ValueError, match=r"^[A-Za-z].* .*\.$"):
        parse_policy(value)
