"""Acknowledgements: what a consumer's later word means, whatever state its delivery is in (S3-38).

A pure table; steps and settings stand around it. A word is about one delivery, whichever attempt
brought its token: late words about one delivery never let another one go.
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
    """``callback``: it calls us later. ``timer``: time alone decides."""
    wait_s: float
    """How long it may take, or how long is waited."""
    on_timeout: OnTimeout

    @property
    def answered(self) -> Transition:
        """What follows from a 2xx."""
        return Transition(_S.AWAITING_ACK, _R.AWAITING_ACK, due_in=self.wait_s, charged=False)


class AckResult(StrEnum):
    """What a word was."""

    ON_TIME = "on_time"
    EARLY = "early"
    """Before our own request had its answer: kept until that is written down."""
    LATE = "late"
    """After the delivery had ended, or was decided without it."""
    DOUBLE = "double"
    """The same was said before."""


class Bounds(NamedTuple):
    """Between which a wait follows what acknowledgements took of late."""

    low_ms: float
    high_ms: float


def bounds_of(ack: Mapping[str, Any] | None) -> Bounds | None:
    """The bounds of a wait that is adaptive; None of one that is not."""
    if not ack or ack.get("timeout_ms") != "adaptive":
        return None
    return Bounds(ack["timeout_min_ms"], ack["timeout_max_ms"])


def mode_of(ack: Mapping[str, Any] | None, learnt_ms: float | None = None) -> Mode | None:
    """The setting ``ack`` of a consumer; None where the answer itself is the acknowledgement.

    ``learnt_ms`` is how long to wait where that is adaptive; while nobody knows, the upper bound.
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
"""Why a delivery is queued again although its consumer may have it: nobody said anything in time,
or nobody was left to hear the answer."""


def heard(state: DeliveryState, reason: Reason, *, ok: bool) -> AckResult:
    """What a word is that comes now."""
    if state is _S.AWAITING_ACK:
        return AckResult.ON_TIME
    if state is _S.QUEUED and reason in _OPEN_ENDS and ok:
        return AckResult.ON_TIME  # it missed its time, and still spares the next try
    if state is _S.IN_FLIGHT:
        return AckResult.EARLY
    if state is _S.DELIVERED and reason is _R.ACKNOWLEDGED:
        return AckResult.DOUBLE
    return AckResult.LATE


def confirmed() -> Transition:
    """The consumer has it."""
    return Transition(_S.DELIVERED, _R.ACKNOWLEDGED, due_in=None, charged=False)


def refused(
    *, failure_count: int, max_attempts: int, policy: Policy, jitter: float, reason: Reason
) -> Transition:
    """It failed after all, or nobody said otherwise in time: as a failed attempt.

    ``failure_count`` is the row's, without this one.
    """
    failures = failure_count + 1
    if failures >= backoff.allowed_attempts(policy, max_attempts):
        return Transition(_S.DEAD, _R.EXHAUSTED, due_in=None, charged=True)
    wait = backoff.delay(policy, failures, jitter)
    return Transition(_S.QUEUED, reason, due_in=wait, charged=True)


def timed_out(
    mode: Mode | None, *, failure_count: int, max_attempts: int, policy: Policy, jitter: float
) -> Transition:
    """Nobody said anything in time. Without a mode (any more) the 2xx was enough."""
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
