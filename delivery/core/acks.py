"""Decide what an acknowledgement does, how long to wait for it, and which delivery it is for.

These are pure functions. An acknowledgement concerns a delivery, whichever attempt issued its
token; a late one for one delivery never affects another.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from itertools import islice
from typing import Any, Literal, NamedTuple

from channels_app.core import backoff, json_paths, provider_ids
from channels_app.core.backoff import Policy
from delivery.core.lifecycle import EXHAUST, DeliveryState, Reason, Transition

OnTimeout = Literal["proceed", "retry", "dead"]
_S, _R = DeliveryState, Reason
_OPEN_ENDS = {_R.ACK_TIMEOUT, _R.INTERRUPTED, _R.LEASE_EXPIRED}
"""Reasons of queued deliveries that the consumer may already have: the acknowledgement or the
response was never received."""
SHARE = 0.99
"""Share of past acknowledgements that must have arrived within the timeout."""
MARGIN = 1.5
"""Factor on that time. Acknowledgements after the timeout are not measured, so this margin lets the
timeout grow when a consumer becomes slower."""
MIN_SAMPLES = 20
"""With fewer samples the upper bound is the timeout."""
MAX_WORDS = 1000
"""Most messages in one callback: as many as Meta sends."""
MAX_ID_LENGTH = 500
"""Characters of a provider's id; longer ones are ignored."""


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
        return EXHAUST
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


def wait_ms(took_ms: Sequence[float], silent_count: int, *, low: float, high: float) -> float:
    """Return the timeout in milliseconds, between ``low`` and ``high``.

    ``took_ms`` are the times of recent acknowledgements, ``silent_count`` is the number of recent
    deliveries without one. If these are the majority the times say nothing: the consumer may have
    become slower than the timeout.
    """
    if len(took_ms) < MIN_SAMPLES or silent_count > len(took_ms):
        return high
    within = sorted(took_ms)[math.ceil(SHARE * len(took_ms)) - 1]
    return min(high, max(low, MARGIN * within))


class ProviderStatus(NamedTuple):
    """The status of one message in a callback."""

    provider_id: str
    ok: bool


def correlation_id(consumer_id: int, provider_id: str) -> int:
    """Hash a consumer and a provider's id to a positive 63-bit number, like key ids.

    Two ids with the same number would be confused. Among a million ids that exist at one time that
    happens in one of ten million installations.
    """
    text = f"{consumer_id}:{provider_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8, person=b"provider").digest()) >> 1


def named(ack: Mapping[str, Any] | None, answer: bytes) -> str:
    """Return the provider's id from the response to a delivery; '' if not configured or not found.

    ``answer`` is the stored part of the response; if that is cut, it is no valid JSON and has no
    id.
    """
    setting = provider_ids.of(ack)
    if setting is None:
        return ""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return ""
    return next((_id(match) for match in json_paths.values_at(setting["response_id"], value)), "")


def words(setting: Mapping[str, Any], body: object) -> Iterator[ProviderStatus]:
    """Yield the statuses of a callback in its order, except those that mean neither ok nor failed.

    Raises ValueError when it contains more than ``MAX_WORDS`` messages.
    """
    statuses = (
        iter([body])
        if setting["callback"] is None
        else json_paths.values_at(setting["callback"], body)
    )
    for status_body in islice(statuses, MAX_WORDS):
        provider_id = _first(setting["callback_id"], status_body)
        status = _first(setting["callback_status"], status_body)
        if provider_id and status in setting["accept"]:
            yield ProviderStatus(provider_id, ok=True)
        elif provider_id and status in setting["fail"]:
            yield ProviderStatus(provider_id, ok=False)
    if next(statuses, None) is not None:
        raise ValueError(f"A callback has at most {MAX_WORDS} reports.")


def _id(value: object) -> str:
    # bool is a subclass of int.
    if isinstance(value, str | int) and not isinstance(value, bool):
        text = str(value)
        return text if len(text) <= MAX_ID_LENGTH else ""
    return ""


def _first(path: str, value: object) -> str:
    return next((_id(match) for match in json_paths.values_at(path, value)), "")
