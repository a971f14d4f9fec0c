"""Define the states of a delivery, and the transitions between them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from channels_app.core import backoff
from channels_app.core.backoff import Policy, RetryRule
from delivery.core.outcome import Outcome

FREE_ATTEMPTS = 20
"""Attempts per delivery that the broker may interrupt without counting them as failures. After
these they count, so that a message that crashes every worker becomes a dead letter."""

MIN_LOCAL_WAIT_S = 1.0
MAX_LOCAL_WAIT_S = 300.0
"""Limits of the wait after an attempt that the broker's host could not make. A long wait would
spare the consumer, which has no part in it."""


class DeliveryState(StrEnum):
    """The stored state (S0-17). A retry is a queued row with attempts; see ``shown_state``."""

    QUEUED = "queued"
    """May be claimed from ``due_at`` on."""
    IN_FLIGHT = "in_flight"
    """Claimed by a worker, whose lease ends at ``due_at``."""
    AWAITING_ACK = "awaiting_ack"
    """Received; the consumer has until ``due_at`` to acknowledge."""
    DELIVERED = "delivered"
    DEAD = "dead"
    """Failed finally; a person may replay it."""
    CANCELLED = "cancelled"
    """Cancelled before it was delivered."""


class Reason(StrEnum):
    """Why a delivery is in its state."""

    ACCEPTED = "accepted"
    """The message was accepted: the first reason of every delivery."""
    CLAIMED = "claimed"
    """A worker or a pull consumer claimed it."""
    DELIVERED = "delivered"
    """The consumer answered 2xx."""
    RETRY = "retry"
    """The attempt failed, another will follow."""
    EXHAUSTED = "exhausted"
    """The attempt failed and was the last one allowed."""
    GONE = "gone"
    """The consumer answered 410."""
    PERMANENT_FAILURE = "permanent_failure"
    """The attempt failed, and the consumer's response rules out another."""
    LEASE_EXPIRED = "lease_expired"
    """The worker or pull consumer did not report a result before its lease ended."""
    INTERRUPTED = "interrupted"
    """The broker stopped, its host could not make the request, or a pull consumer gave the delivery
    back."""
    REPLAYED = "replayed"
    """A person queued it again, with its failures counted from zero."""
    CANCELLED = "cancelled"
    """A person or the producer cancelled it."""
    EXPIRED = "expired"
    """The message expired."""
    RETIRED = "retired"
    """Its consumer was retired."""
    UNREADABLE = "unreadable"
    """The stored body could not be read. While queued: the claiming process lacks an encryption
    key."""
    INTEGRITY_ERROR = "integrity_error"
    """The stored body was changed after it was accepted."""
    ACKNOWLEDGED = "acknowledged"
    """The consumer confirmed it."""
    AWAITING_ACK = "awaiting_ack"
    """The consumer answered 2xx and will acknowledge later."""
    ACK_TIMEOUT = "ack_timeout"
    """The acknowledgement did not come in time."""


_S, _R = DeliveryState, Reason

ARROWS: frozenset[tuple[DeliveryState, DeliveryState, Reason]] = frozenset(
    {
        (_S.QUEUED, _S.IN_FLIGHT, _R.CLAIMED),
        (_S.QUEUED, _S.CANCELLED, _R.CANCELLED),
        (_S.QUEUED, _S.CANCELLED, _R.RETIRED),
        (_S.QUEUED, _S.CANCELLED, _R.EXPIRED),
        (_S.QUEUED, _S.DEAD, _R.EXHAUSTED),
        (_S.IN_FLIGHT, _S.DELIVERED, _R.DELIVERED),
        (_S.IN_FLIGHT, _S.DELIVERED, _R.ACKNOWLEDGED),
        (_S.IN_FLIGHT, _S.AWAITING_ACK, _R.AWAITING_ACK),
        (_S.IN_FLIGHT, _S.QUEUED, _R.RETRY),
        (_S.IN_FLIGHT, _S.QUEUED, _R.INTERRUPTED),
        (_S.IN_FLIGHT, _S.QUEUED, _R.LEASE_EXPIRED),
        # Given back before its attempt began, as if it had never been claimed (queue/release.py).
        (_S.IN_FLIGHT, _S.QUEUED, _R.UNREADABLE),
        (_S.IN_FLIGHT, _S.DEAD, _R.EXHAUSTED),
        (_S.IN_FLIGHT, _S.DEAD, _R.GONE),
        (_S.IN_FLIGHT, _S.DEAD, _R.PERMANENT_FAILURE),
        (_S.IN_FLIGHT, _S.DEAD, _R.UNREADABLE),
        (_S.IN_FLIGHT, _S.DEAD, _R.INTEGRITY_ERROR),
        (_S.IN_FLIGHT, _S.CANCELLED, _R.EXPIRED),
        # A row whose lease or acknowledgement deadline has passed is due like any other.
        (_S.IN_FLIGHT, _S.IN_FLIGHT, _R.CLAIMED),
        (_S.AWAITING_ACK, _S.IN_FLIGHT, _R.CLAIMED),
        (_S.AWAITING_ACK, _S.DELIVERED, _R.ACKNOWLEDGED),
        (_S.AWAITING_ACK, _S.QUEUED, _R.RETRY),
        (_S.AWAITING_ACK, _S.QUEUED, _R.ACK_TIMEOUT),
        (_S.AWAITING_ACK, _S.DEAD, _R.EXHAUSTED),
        # No acknowledgement came in time, and the consumer's settings treat that as final.
        (_S.AWAITING_ACK, _S.DELIVERED, _R.ACK_TIMEOUT),
        (_S.AWAITING_ACK, _S.DEAD, _R.ACK_TIMEOUT),
        # A late acknowledgement arrived before the next attempt.
        (_S.QUEUED, _S.DELIVERED, _R.ACKNOWLEDGED),
        (_S.DEAD, _S.QUEUED, _R.REPLAYED),
        (_S.DELIVERED, _S.QUEUED, _R.REPLAYED),
        (_S.CANCELLED, _S.QUEUED, _R.REPLAYED),
    }
)
"""All allowed state changes, with their reasons; a delivery begins as queued, accepted."""

FINISHED = frozenset({_S.DELIVERED, _S.DEAD, _S.CANCELLED})
"""States that only a replay leaves; their ``due_at`` is null."""

_REASON_AFTER = {
    Outcome.INTERRUPTED: _R.INTERRUPTED,
    Outcome.LEASE_EXPIRED: _R.LEASE_EXPIRED,
}
RETRIES: Mapping[DeliveryState, str] = {
    _S.QUEUED: "Retry-Delivery",
    _S.IN_FLIGHT: "Retry-In-flight",
}
"""Names of these states after an earlier attempt."""


@dataclass(frozen=True, slots=True)
class Transition:
    """Where a delivery goes, and why."""

    state: DeliveryState
    reason: Reason
    due_in: float | None
    """Seconds until it may be claimed again; None when it is finished."""
    charged: bool
    """Whether ``failure_count`` increases by one."""
    is_free: bool = False
    """Whether no attempt is counted, neither as a failure nor as an interruption."""

    @property
    def counted(self) -> str | None:
        """The count that increases by one: ``failure_count``, ``interruption_count`` or None."""
        if self.charged:
            return "failure_count"
        is_again = self.state in {DeliveryState.QUEUED, DeliveryState.IN_FLIGHT}
        return "interruption_count" if is_again and not self.is_free else None


EXHAUST = Transition(_S.DEAD, _R.EXHAUSTED, due_in=None, charged=True)
"""The attempt was the last one allowed."""
_FINAL = {
    outcome: Transition(state, reason, due_in=None, charged=outcome.charged)
    for outcome, state, reason in (
        (Outcome.DELIVERED, _S.DELIVERED, _R.DELIVERED),
        (Outcome.DELIVERED_OVERSIZED, _S.DELIVERED, _R.DELIVERED),
        (Outcome.GONE, _S.DEAD, _R.GONE),
        (Outcome.BODY_UNREADABLE, _S.DEAD, _R.UNREADABLE),
        (Outcome.INTEGRITY_ERROR, _S.DEAD, _R.INTEGRITY_ERROR),
        (Outcome.EXPIRED, _S.CANCELLED, _R.EXPIRED),
    )
}


def after_attempt(
    outcome: Outcome,
    *,
    failure_count: int,
    attempt_count: int,
    max_attempts: int,
    policy: Policy,
    retry_after: float | None,
    jitter: float,
    charges_leases: bool = False,
    is_final: bool = False,
    is_local: bool = False,
) -> Transition:
    """Return the transition out of ``in_flight`` after an attempt (S0-33, S0-35).

    ``failure_count`` is the row's value without this attempt; ``attempt_count`` counts every claim
    of the row, including this one. ``retry_after``, in seconds, is what the consumer asks for; it
    can lengthen the wait and never shortens it. ``jitter`` is in [0, 1). With ``charges_leases``
    each receive of a pull consumer counts as a failure; a delivery that was given back may be
    received again at once. ``is_final`` is set when the consumer reports that another attempt would
    fail as well, ``is_local`` when the broker's host could not make the request: such attempts have
    no limit but the message's expiry.
    """
    if is_local:
        wait = backoff.delay(policy, failure_count + 1, jitter)
        wait = min(max(wait, MIN_LOCAL_WAIT_S), MAX_LOCAL_WAIT_S)
        return Transition(_S.QUEUED, _R.INTERRUPTED, due_in=wait, charged=False, is_free=True)
    if outcome in _FINAL:
        return _FINAL[outcome]
    if is_final:
        return Transition(_S.DEAD, _R.PERMANENT_FAILURE, due_in=None, charged=True)
    if not (outcome.charged or charges_leases) and attempt_count - failure_count <= FREE_ATTEMPTS:
        return Transition(_S.QUEUED, _REASON_AFTER[outcome], due_in=0.0, charged=False)
    failures = failure_count + 1
    if failures >= backoff.allowed_attempts(policy, max_attempts):
        return EXHAUST
    if charges_leases and not outcome.charged:
        return Transition(_S.QUEUED, _REASON_AFTER[outcome], due_in=0.0, charged=True)
    wait = max(backoff.delay(policy, failures, jitter), retry_after or 0.0)
    return Transition(_S.QUEUED, _REASON_AFTER.get(outcome, _R.RETRY), due_in=wait, charged=True)


def is_last_lease(failure_count: int, *, rule: RetryRule) -> bool:
    """Return whether this was the last lease of a consumer that is charged for expired ones.

    ``failure_count`` is the row's value without this lease.
    """
    return failure_count + 1 >= rule.max_attempts


class StateLabel(NamedTuple):
    """How the API, the console and the portal present a state."""

    name: str
    """As the API and the requirement write it (S0-17)."""
    title: str
    """Heading of deliveries in this state."""
    about: str
    tone: str
    """Colour: ``good``, ``bad``, ``busy``, ``wait`` or ``calm``."""


LABELS: Mapping[DeliveryState, StateLabel] = {
    _S.QUEUED: StateLabel("Queued", "Queued", "waiting for their first or next attempt", "busy"),
    _S.IN_FLIGHT: StateLabel("In-flight", "In flight", "claimed by a worker", "busy"),
    _S.AWAITING_ACK: StateLabel(
        "Awaiting-Ack", "Awaiting ack", "received, acknowledgement pending", "wait"
    ),
    _S.DELIVERED: StateLabel("Delivered", "Delivered", "succeeded", "good"),
    _S.DEAD: StateLabel("Dead", "Dead letters", "failed finally; can be replayed", "bad"),
    _S.CANCELLED: StateLabel("Cancelled", "Cancelled", "cancelled or expired", "calm"),
}
"""In the order in which pages list them."""
SHOWN_STATES = [
    name for state in LABELS for name in (LABELS[state].name, RETRIES.get(state)) if name
]
"""All names of states for people and the API (S0-17)."""


def shown_state(state: DeliveryState, failure_count: int, attempt_count: int) -> str:
    """Return the state's name for people and the API (S0-17), where retries have their own."""
    if state in RETRIES and (failure_count > 0 or attempt_count > attempts_at_first(state)):
        return RETRIES[state]
    return LABELS[state].name


def attempts_at_first(state: DeliveryState) -> int:
    """Return the attempt count of a delivery that is in this state for the first time."""
    return int(state is _S.IN_FLIGHT)


def tone(state: DeliveryState, failure_count: int) -> str:
    """Return the colour of the state; a delivery that waits for a retry has that of waiting."""
    return "wait" if state is _S.QUEUED and failure_count else LABELS[state].tone


class ClaimedDelivery(NamedTuple):
    """One leased delivery.

    A tuple, because one is created for every attempt, at a fifth of the cost of a frozen dataclass.
    """

    id: int
    message_id: int
    consumer_id: int
    attempt: int
    """Number of this attempt; the fence of every write that closes it."""
    failure_count: int
    interruption_count: int
    priority: int
    due_at: datetime
    accepted_at: datetime
    event_type: str
    ordering_key: str
    replayed: bool
    lease_until: datetime

    @property
    def state(self) -> DeliveryState:
        """Its state until the attempt ends."""
        return DeliveryState.IN_FLIGHT

    @property
    def tries(self) -> int:
        """Number of this try since the last replay, including tries that were not charged."""
        return self.failure_count + self.interruption_count + 1


class ClaimAllowance(NamedTuple):
    """How many new deliveries of one consumer may be claimed at once."""

    limit: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class DirectClaim:
    """A claim of due deliveries while they are created."""

    owner: int
    """The pump's generation, or a pull worker."""
    now: datetime
    allow: Callable[[Mapping[int, int]], Mapping[int, ClaimAllowance]]
    """Called with the number of new deliveries of each consumer; returns how many may be claimed.
    It must omit consumers that already have due deliveries of priority ``min_priority`` or more,
    which might be more urgent. Called again if the transaction is retried."""
    min_priority: int = 0
    """Deliveries of lower priority are not claimed: more urgent ones wait for the same capacity."""

    def end(self, lease_ms: int) -> datetime:
        """Return the end of a lease that begins now."""
        return self.now + timedelta(milliseconds=lease_ms)
