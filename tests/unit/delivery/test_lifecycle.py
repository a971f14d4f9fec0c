"""Every outcome leads to exactly one allowed transition, and every delivery ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core import backoff
from channels_app.core.backoff import PRESETS, Policy, Steps
from delivery.core.lifecycle import (
    ARROWS,
    FINISHED,
    FREE_ATTEMPTS,
    LABELS,
    MAX_LOCAL_WAIT_S,
    MIN_LOCAL_WAIT_S,
    DeliveryState,
    Reason,
    Transition,
    after_attempt,
    shown_state,
    tone,
)
from delivery.core.outcome import Outcome
from tests.support.properties import quick

S, R = DeliveryState, Reason

EVERY_MINUTE = Steps((60.0,))
OUTCOMES = st.sampled_from(list(Outcome))
POLICIES = st.sampled_from(list(PRESETS.values()))
RETRIED = [
    outcome
    for outcome in Outcome
    if outcome.charged and outcome not in (Outcome.GONE, Outcome.EXPIRED, Outcome.BODY_UNREADABLE)
]


def step(
    outcome: Outcome,
    *,
    failure_count: int = 0,
    attempt_count: int = 1,
    max_attempts: int = 10,
    policy: Policy = EVERY_MINUTE,
    retry_after: float | None = None,
    jitter: float = 0.5,
) -> Transition:
    return after_attempt(
        outcome,
        failure_count=failure_count,
        attempt_count=attempt_count,
        max_attempts=max_attempts,
        policy=policy,
        retry_after=retry_after,
        jitter=jitter,
    )


@quick
@given(
    OUTCOMES,
    st.integers(0, 30),
    st.integers(1, 60),
    st.integers(1, 30),
    POLICIES,
    st.none() | st.floats(0, 86_400),
    st.floats(0, 1, exclude_max=True),
    st.booleans(),
    st.booleans(),
)
def test_every_transition_is_in_the_diagram(
    outcome: Outcome,
    failures: int,
    attempts: int,
    most: int,
    policy: Policy,
    wish: float | None,
    jitter: float,
    charges_leases: bool,
    is_final: bool,
) -> None:
    move = after_attempt(
        outcome,
        failure_count=failures,
        attempt_count=attempts,
        max_attempts=most,
        policy=policy,
        retry_after=wish,
        jitter=jitter,
        charges_leases=charges_leases,
        is_final=is_final,
    )
    assert (S.IN_FLIGHT, move.state, move.reason) in ARROWS
    assert (move.due_in is None) == (move.state in FINISHED)
    assert move.due_in is None or move.due_in >= 0
    # Only a response asks for a time, and its failure is charged.
    if move.state is S.QUEUED and move.charged and outcome.charged:
        assert move.due_in is not None
        assert move.due_in >= (wish or 0)


@quick
@given(st.data(), st.integers(1, 10), POLICIES)
def test_every_sequence_of_failures_ends(data: st.DataObject, most: int, policy: Policy) -> None:
    failures = attempts = 0
    while True:
        attempts += 1
        outcome = data.draw(st.sampled_from([o for o in Outcome if not o.is_success]))
        move = step(
            outcome,
            failure_count=failures,
            attempt_count=attempts,
            max_attempts=most,
            policy=policy,
        )
        failures += move.charged
        if move.state in FINISHED:
            break
        assert failures < most
    assert attempts <= most + FREE_ATTEMPTS


@pytest.mark.parametrize("outcome", [Outcome.DELIVERED, Outcome.DELIVERED_OVERSIZED])
def test_success_delivers_whatever_came_before(outcome: Outcome) -> None:
    move = step(outcome, failure_count=9, attempt_count=40)
    assert move == Transition(S.DELIVERED, R.DELIVERED, due_in=None, charged=False)


@pytest.mark.parametrize(
    ("outcome", "state", "reason"),
    [
        (Outcome.GONE, S.DEAD, R.GONE),
        (Outcome.BODY_UNREADABLE, S.DEAD, R.UNREADABLE),
        (Outcome.EXPIRED, S.CANCELLED, R.EXPIRED),
    ],
)
def test_permanent_failures_are_dead_at_once(
    outcome: Outcome, state: DeliveryState, reason: Reason
) -> None:
    assert step(outcome) == Transition(state, reason, due_in=None, charged=True)


@pytest.mark.parametrize("outcome", RETRIED)
def test_other_failures_are_retried_until_the_budget_is_used_up(outcome: Outcome) -> None:
    again = step(outcome, failure_count=8, max_attempts=10)
    assert again == Transition(S.QUEUED, R.RETRY, due_in=60.0, charged=True)
    last = step(outcome, failure_count=9, max_attempts=10)
    assert last == Transition(S.DEAD, R.EXHAUSTED, due_in=None, charged=True)


def test_the_budget_counts_failures_since_the_last_replay_not_attempts() -> None:
    move = step(Outcome.TIMEOUT, failure_count=0, attempt_count=11, max_attempts=10)
    assert move.state is S.QUEUED


def test_a_policy_without_retries_overrules_the_number_of_attempts() -> None:
    assert step(Outcome.TIMEOUT, policy=PRESETS["once"]).reason is R.EXHAUSTED


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(Outcome.INTERRUPTED, R.INTERRUPTED), (Outcome.LEASE_EXPIRED, R.LEASE_EXPIRED)],
)
def test_broker_failures_are_uncharged_up_to_a_limit(outcome: Outcome, reason: Reason) -> None:
    free = step(outcome, attempt_count=FREE_ATTEMPTS, max_attempts=2)
    assert free == Transition(S.QUEUED, reason, due_in=0.0, charged=False)
    charged = step(outcome, attempt_count=FREE_ATTEMPTS + 1, max_attempts=2)
    assert charged == Transition(S.QUEUED, reason, due_in=60.0, charged=True)
    last = step(outcome, failure_count=1, attempt_count=FREE_ATTEMPTS + 2, max_attempts=2)
    assert last == Transition(S.DEAD, R.EXHAUSTED, due_in=None, charged=True)


@pytest.mark.trap("an outage of this side is charged to the consumers")
@pytest.mark.parametrize(
    ("policy", "wait_s"),
    [
        (EVERY_MINUTE, 60.0),
        (PRESETS["once"], MIN_LOCAL_WAIT_S),
        (Steps((86_400.0,)), MAX_LOCAL_WAIT_S),
    ],
)
def test_what_this_side_could_not_send_is_never_charged(policy: Policy, wait_s: float) -> None:
    move = after_attempt(
        Outcome.INTERRUPTED,
        failure_count=9,
        attempt_count=9 + 10 * FREE_ATTEMPTS,
        max_attempts=10,
        policy=policy,
        retry_after=None,
        jitter=0.5,
        is_local=True,
    )
    assert move == Transition(S.QUEUED, R.INTERRUPTED, wait_s, charged=False, is_free=True)


def test_charged_failures_do_not_use_up_the_free_attempts() -> None:
    move = step(Outcome.INTERRUPTED, failure_count=8, attempt_count=FREE_ATTEMPTS + 8)
    assert not move.charged
    move = step(Outcome.INTERRUPTED, failure_count=8, attempt_count=FREE_ATTEMPTS + 9)
    assert move.charged


def test_retry_after_lengthens_the_wait_and_never_shortens_it() -> None:
    assert step(Outcome.THROTTLED, retry_after=3600.0).due_in == 3600
    assert step(Outcome.THROTTLED, retry_after=1.0).due_in == 60


def test_the_wait_belongs_to_the_current_failure() -> None:
    policy = Steps((1.0, 10.0, 100.0))
    for failures in range(3):
        move = step(Outcome.TIMEOUT, failure_count=failures, policy=policy, jitter=0.9)
        assert move.due_in == backoff.delay(policy, failures + 1, 0.9)


def test_only_a_replay_leaves_a_finished_state() -> None:
    leaving = {(end, reason) for start, end, reason in ARROWS if start in FINISHED}
    assert leaving == {(S.QUEUED, R.REPLAYED)}
    assert {start for start, _, reason in ARROWS if reason is R.REPLAYED} == FINISHED


def test_transitions_equal_the_documented_diagram() -> None:
    assert {(start, end) for start, end, _ in ARROWS} == {
        (S.QUEUED, S.IN_FLIGHT),
        (S.QUEUED, S.CANCELLED),
        (S.QUEUED, S.DEAD),
        (S.QUEUED, S.DELIVERED),
        (S.IN_FLIGHT, S.DELIVERED),
        (S.IN_FLIGHT, S.QUEUED),
        (S.IN_FLIGHT, S.DEAD),
        (S.IN_FLIGHT, S.AWAITING_ACK),
        (S.IN_FLIGHT, S.CANCELLED),
        (S.IN_FLIGHT, S.IN_FLIGHT),
        (S.AWAITING_ACK, S.DELIVERED),
        (S.AWAITING_ACK, S.QUEUED),
        (S.AWAITING_ACK, S.DEAD),
        (S.AWAITING_ACK, S.IN_FLIGHT),
        (S.DEAD, S.QUEUED),
        (S.DELIVERED, S.QUEUED),
        (S.CANCELLED, S.QUEUED),
    }


def test_every_state_is_reached_and_left() -> None:
    assert {end for _, end, _ in ARROWS} == {start for start, _, _ in ARROWS} == set(DeliveryState)
    assert {reason for _, _, reason in ARROWS} == set(Reason) - {R.ACCEPTED}


@pytest.mark.parametrize(
    ("state", "failures", "attempts", "shown"),
    [
        (S.QUEUED, 0, 0, "Queued"),
        (S.IN_FLIGHT, 0, 1, "In-flight"),
        (S.QUEUED, 1, 1, "Retry-Delivery"),
        (S.QUEUED, 0, 1, "Retry-Delivery"),
        (S.IN_FLIGHT, 1, 2, "Retry-In-flight"),
        (S.IN_FLIGHT, 0, 2, "Retry-In-flight"),
        (S.AWAITING_ACK, 0, 1, "Awaiting-Ack"),
        (S.AWAITING_ACK, 1, 2, "Awaiting-Ack"),
        (S.DELIVERED, 3, 4, "Delivered"),
        (S.DEAD, 10, 10, "Dead"),
        (S.CANCELLED, 0, 0, "Cancelled"),
    ],
)
def test_shown_states_have_the_names_of_the_requirement(
    state: DeliveryState, failures: int, attempts: int, shown: str
) -> None:
    assert shown_state(state, failures, attempts) == shown


def test_after_attempt_without_retry_after_waits_no_longer_than_the_policy_says() -> None:
    assert step(Outcome.TIMEOUT, policy=Steps((0.25,))).due_in == 0.25


def test_shown_state_of_one_failure_is_a_retry_whatever_the_attempts_say() -> None:
    assert shown_state(S.IN_FLIGHT, 1, 1) == "Retry-In-flight"


def test_every_state_has_a_label_and_a_retry_a_colour_of_its_own() -> None:
    assert list(LABELS) == list(DeliveryState)
    assert {label.tone for label in LABELS.values()} <= {"good", "bad", "busy", "wait", "calm"}
    assert (tone(DeliveryState.QUEUED, 0), tone(DeliveryState.QUEUED, 2)) == ("busy", "wait")
    assert tone(DeliveryState.DEAD, 2) == "bad"
