"""The states of a delivery, the arrows between them, and where an attempt's outcome leads."""

from dataclasses import dataclass
from enum import StrEnum

from delivery.rules import backoff
from delivery.rules.backoff import Policy
from delivery.rules.outcome import Outcome

FREE_ATTEMPTS = 20
"""Attempts per delivery that the broker may spoil itself before they count: a message that makes
every worker crash must end in the dead letters, not in a loop."""


class DeliveryState(StrEnum):
    """What is stored (S0-17). A retry is a queued row that has attempts; see ``shown_state``."""

    QUEUED = "queued"
    """May be taken from its ``due_at`` on."""
    IN_FLIGHT = "in_flight"
    """Taken by a worker, until its lease ends at ``due_at``."""
    AWAITING_ACK = "awaiting_ack"
    """Received; the consumer has until ``due_at`` to acknowledge."""
    DELIVERED = "delivered"
    DEAD = "dead"
    """Given up; a person may replay it."""
    CANCELLED = "cancelled"
    """Taken back before it was delivered."""


class Reason(StrEnum):
    """Why a delivery is in its state."""

    ACCEPTED = "accepted"
    """The message was accepted: how every delivery begins."""
    CLAIMED = "claimed"
    """A worker, or a pull consumer, took it."""
    DELIVERED = "delivered"
    """The consumer answered 2xx."""
    RETRY = "retry"
    """The attempt failed, another will follow."""
    EXHAUSTED = "exhausted"
    """The attempt failed and was the last one allowed."""
    GONE = "gone"
    """The consumer answered 410."""
    LEASE_EXPIRED = "lease_expired"
    """The worker, or the pull consumer, did not come back in time."""
    INTERRUPTED = "interrupted"
    """The broker stopped, or a pull consumer gave it back."""
    REPLAYED = "replayed"
    """A person asked for it again, with a fresh budget."""
    CANCELLED = "cancelled"
    """A person or the producer took it back."""
    EXPIRED = "expired"
    """The message's last instant passed."""
    RETIRED = "retired"
    """Its consumer was removed."""
    UNREADABLE = "unreadable"
    """The stored body could not be read."""
    ACKNOWLEDGED = "acknowledged"
    """The consumer confirmed it."""
    AWAITING_ACK = "awaiting_ack"
    """The consumer answered 2xx and will confirm later."""
    ACK_TIMEOUT = "ack_timeout"
    """The confirmation did not come in time."""


S, R = DeliveryState, Reason

ARROWS: frozenset[tuple[DeliveryState, DeliveryState, Reason]] = frozenset(
    {
        (S.QUEUED, S.IN_FLIGHT, R.CLAIMED),
        (S.QUEUED, S.CANCELLED, R.CANCELLED),
        (S.QUEUED, S.CANCELLED, R.RETIRED),
        (S.QUEUED, S.CANCELLED, R.EXPIRED),
        (S.QUEUED, S.DEAD, R.EXHAUSTED),
        (S.IN_FLIGHT, S.DELIVERED, R.DELIVERED),
        (S.IN_FLIGHT, S.DELIVERED, R.ACKNOWLEDGED),
        (S.IN_FLIGHT, S.AWAITING_ACK, R.AWAITING_ACK),
        (S.IN_FLIGHT, S.QUEUED, R.RETRY),
        (S.IN_FLIGHT, S.QUEUED, R.INTERRUPTED),
        (S.IN_FLIGHT, S.QUEUED, R.LEASE_EXPIRED),
        (S.IN_FLIGHT, S.DEAD, R.EXHAUSTED),
        (S.IN_FLIGHT, S.DEAD, R.GONE),
        (S.IN_FLIGHT, S.CANCELLED, R.EXPIRED),
        (S.IN_FLIGHT, S.DEAD, R.UNREADABLE),
        (S.AWAITING_ACK, S.DELIVERED, R.ACKNOWLEDGED),
        (S.AWAITING_ACK, S.QUEUED, R.RETRY),
        (S.AWAITING_ACK, S.QUEUED, R.ACK_TIMEOUT),
        (S.AWAITING_ACK, S.DEAD, R.EXHAUSTED),
        (S.DEAD, S.QUEUED, R.REPLAYED),
        (S.DELIVERED, S.QUEUED, R.REPLAYED),
        (S.CANCELLED, S.QUEUED, R.REPLAYED),
    }
)
"""Every change of state there is; a delivery begins as queued, accepted."""

FINISHED = frozenset({S.DELIVERED, S.DEAD, S.CANCELLED})
"""States that nothing but a replay leaves; their ``due_at`` is empty."""

_FATAL = {
    Outcome.GONE: R.GONE,
    Outcome.BODY_UNREADABLE: R.UNREADABLE,
}
_SPOILT = {
    Outcome.INTERRUPTED: R.INTERRUPTED,
    Outcome.LEASE_EXPIRED: R.LEASE_EXPIRED,
}


@dataclass(frozen=True, slots=True)
class Transition:
    """Where a delivery goes after an attempt."""

    state: DeliveryState
    reason: Reason
    due_in: float | None
    """Seconds until it may be taken again; None when it is finished."""
    charged: bool
    """Whether ``failure_count`` rises by one."""


def after_attempt(
    outcome: Outcome,
    *,
    failure_count: int,
    attempt_count: int,
    max_attempts: int,
    policy: Policy,
    retry_after: float | None,
    jitter: float,
) -> Transition:
    """The step that follows an attempt, out of ``in_flight`` (S0-33, S0-35).

    ``failure_count`` is the row's, without this attempt; ``attempt_count`` counts every claim of
    the row, this one too. ``retry_after`` is the consumer's wish in seconds: it may lengthen the
    wait and never shortens it. ``jitter`` is in [0, 1).
    """
    if outcome.is_success:
        return Transition(S.DELIVERED, R.DELIVERED, due_in=None, charged=False)
    if outcome in _FATAL:
        return Transition(S.DEAD, _FATAL[outcome], due_in=None, charged=True)
    if not outcome.charged and attempt_count - failure_count <= FREE_ATTEMPTS:
        return Transition(S.QUEUED, _SPOILT[outcome], due_in=0.0, charged=False)
    failures = failure_count + 1
    if failures >= backoff.allowed_attempts(policy, max_attempts):
        return Transition(S.DEAD, R.EXHAUSTED, due_in=None, charged=True)
    wait = max(backoff.delay(policy, failures, jitter), retry_after or 0.0)
    return Transition(S.QUEUED, _SPOILT.get(outcome, R.RETRY), due_in=wait, charged=True)


_SHOWN = {
    S.QUEUED: "Queued",
    S.IN_FLIGHT: "In-flight",
    S.AWAITING_ACK: "Awaiting-Ack",
    S.DELIVERED: "Delivered",
    S.DEAD: "Dead",
    S.CANCELLED: "Cancelled",
}


def shown_state(state: DeliveryState, failure_count: int, attempt_count: int) -> str:
    """The state's name for people and the API (S0-17): a second try is called a retry."""
    earlier_attempts = attempt_count - (state is S.IN_FLIGHT)
    if failure_count > 0 or earlier_attempts > 0:
        if state is S.QUEUED:
            return "Retry-Delivery"
        if state is S.IN_FLIGHT:
            return "Retry-In-flight"
    return _SHOWN[state]
