"""Decide what a consumer's acknowledgement means in each state of its delivery (S3-38).

These are pure functions. An acknowledgement concerns a delivery, whichever attempt issued its
token; a late one for one delivery never affects another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from channels_app.rules import backoff
from channels_app.rules.backoff import Policy
from delivery.rules.lifecycle import DeliveryState, Reason, Transition

OnTimeout = Literal["proceed", "retry", "dead"]
_S, _R = DeliveryState, Reason


@dataclass(frozen=True, slots=True)
class Mode:
    """How a consumer acknowledges."""

    kind: Literal["callback", "timer"]
    """``callback``: the consumer calls the broker later. ``timer``: only time decides."""
    wait_s: float
    """Seconds allowed for the acknowledgement, or seconds to wait."""
    on_timeout: OnTimeout

    @property
    def answered(self) -> Transition:
        """Return the transition after a 2xx."""
        return Transition(_S.AWAITING_ACK, _R.AWAITING_ACK, due_in=self.wait_s, charged=False)


class AckResult(StrEnum):
    """How an acknowledgement relates to its delivery."""

    ON_TIME = "on_time"
    EARLY = "early"
    """Before the response of the broker's own request: kept until that is recorded."""
    LATE = "late"
    """After the delivery had ended, or had been decided without it."""
    DOUBLE = "double"
    """A repetition of an earlier acknowledgement."""


class Bounds(NamedTuple):
    """Limits of a timeout that adapts to how long acknowledgements take."""

    low_ms: float
    high_ms: float


def bounds_of(ack: Mapping[str, Any] | None) -> Bounds | None:
    """Return the bounds of an adaptive timeout; None if it is not adaptive."""
    if not ack or ack.get("timeout_ms") != "adaptive":
        return None
    return Bounds(ack["timeout_min_ms"], ack["timeout_max_ms"])


def mode_of(ack: Mapping[str, Any] | None, learnt_ms: float | None = None) -> Mode | None:
    """Return the parsed setting ``ack`` of a consumer; None if its response is the acknowledgement.

    ``learnt_ms`` is the adaptive timeout; while it is None, the upper bound applies.
    """
    if not ack:
        return None
    if ack["mode"] == "timer":
        return Mode("timer", ack["delay_ms"] / 1000, "proceed")
    wait_ms = ack["timeout_ms"]
    if bounds := bounds_of(ack):
        wait_ms = bounds.high_ms if learnt_ms is None else learnt_ms
    return Mode("callback", wait_ms / 1000, ack["on_timeout"])


_OPEN_ENDS = {_R.ACK_TIMEOUT, _R.INTERRUPTED, _R.LEASE_EXPIRED}
"""Reasons of queued deliveries that the consumer may already have: the acknowledgement or the
response was never received."""


def ack_result(state: DeliveryState, reason: Reason, *, ok: bool) -> AckResult:
    """Return how an acknowledgement that arrives now relates to its delivery."""
    if state is _S.AWAITING_ACK:
        return AckResult.ON_TIME
    if state is _S.QUEUED and reason in _OPEN_ENDS and ok:
        return AckResult.ON_TIME  # it missed its deadline, and still saves the next attempt
    if state is _S.IN_FLIGHT:
        return AckResult.EARLY
    if state is _S.DELIVERED and reason is _R.ACKNOWLEDGED:
        return AckResult.DOUBLE
    return AckResult.LATE


def confirmed() -> Transition:
    """Return the transition after a positive acknowledgement."""
    return Transition(_S.DELIVERED, _R.ACKNOWLEDGED, due_in=None, charged=False)


def refused(
    *, failure_count: int, max_attempts: int, policy: Policy, jitter: float, reason: Reason
) -> Transition:
    """Return the transition after a negative or missing acknowledgement: as after a failed attempt.

    ``failure_count`` is the row's value without this failure.
    """
    failures = failure_count + 1
    if failures >= backoff.allowed_attempts(policy, max_attempts):
        return Transition(_S.DEAD, _R.EXHAUSTED, due_in=None, charged=True)
    wait = backoff.delay(policy, failures, jitter)
    return Transition(_S.QUEUED, reason, due_in=wait, charged=True)


def timed_out(
    mode: Mode | None, *, failure_count: int, max_attempts: int, policy: Policy, jitter: float
) -> Transition:
    """Return the transition at the deadline. Without a mode the 2xx was sufficient."""
    if mode is None or mode.on_timeout == "proceed":
        return Transition(_S.DELIVERED, _R.ACK_TIMEOUT, due_in=None, charged=False)
    if mode.on_timeout == "dead":
        return Transition(_S.DEAD, _R.ACK_TIMEOUT, due_in=None, charged=True)
    return refused(
        failure_count=failure_count,
        max_attempts=max_attempts,
        policy=policy,
        jitter=jitter,
        reason=_R.ACK_TIMEOUT,
    )
