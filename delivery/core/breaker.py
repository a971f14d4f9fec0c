"""A consumer's circuit breaker: stop calling after outages, probe, close after one response."""

from dataclasses import dataclass, replace
from typing import Literal

CLOSED = "closed"
OPEN = "open"

Verdict = Literal["yes", "probe", "no"]

SLOW_BASE_S = 1.0
SLOW_CAP_S = 60.0
"""Largest general pause of a consumer that asks for a slower pace; single retries may wait
longer."""


@dataclass(frozen=True, slots=True)
class Circuit:
    """Circuit state of a consumer. Times are Unix seconds."""

    state: str = CLOSED
    """``open`` includes what is often called half-open: ``may_send`` then returns ``probe``."""
    consecutive_failures: int = 0
    """Failures since the last success, refusals included."""
    outage_count: int = 0
    """Failures in a row that say that the endpoint is ill. Not stored: a new pump counts anew."""
    opened_count: int = 0
    """Times that it opened or a probe failed since it was last closed."""
    next_probe_at: float | None = None
    failing_since: float | None = None
    """First failure since the last success."""
    slow_until: float | None = None
    """Nothing is sent before this time because the consumer asked for it (429, 502, 503, 504)."""
    slow_count: int = 0
    """Pauses since the last success."""


_SOUND = Circuit()


def may_send(circuit: Circuit, now: float) -> Verdict:
    """Return ``yes``, ``probe`` (one request to see whether the consumer recovered) or ``no``."""
    if circuit.slow_until is not None and now < circuit.slow_until:
        return "no"
    if circuit.state == CLOSED:
        return "yes"
    if circuit.next_probe_at is not None and now < circuit.next_probe_at:
        return "no"
    return "probe"


def after_success(circuit: Circuit, now: float) -> Circuit:
    """Close the circuit and clear the failures after one success."""
    return _SOUND


def after_refusal(circuit: Circuit, now: float) -> Circuit:
    """Close the circuit: the endpoint works, although it refused one message.

    The failure still counts for the consumer's health, and a requested pause holds.
    """
    return replace(
        _failed(circuit, now), state=CLOSED, outage_count=0, opened_count=0, next_probe_at=None
    )


def after_failure(
    circuit: Circuit, now: float, *, threshold: int, base_s: float, cap_s: float
) -> Circuit:
    """Count an outage. ``threshold`` in a row open the circuit; each failed probe doubles the wait.

    Failures of requests that were in flight when it opened do not delay the probe.
    """
    failed = replace(_failed(circuit, now), outage_count=circuit.outage_count + 1)
    if circuit.state == CLOSED and failed.outage_count < threshold:
        return failed
    waiting = circuit.next_probe_at is not None and now < circuit.next_probe_at
    if circuit.state == OPEN and waiting:
        return failed
    wait = min(cap_s, base_s * 2.0 ** min(circuit.opened_count, 30))
    return replace(
        failed, state=OPEN, opened_count=circuit.opened_count + 1, next_probe_at=now + wait
    )


def slowed(circuit: Circuit, now: float, retry_after: float | None) -> Circuit:
    """Pause: as long as the consumer asks, else doubling from one second to a minute.

    Responses to requests that were in flight when the pause began do not double it.
    """
    pausing = circuit.slow_until is not None and now < circuit.slow_until
    wait = SLOW_BASE_S * 2.0 ** min(circuit.slow_count, 30)
    if retry_after is not None:
        wait = retry_after
    elif pausing:
        return circuit
    until = max(now + min(SLOW_CAP_S, wait), circuit.slow_until or 0.0)
    count = circuit.slow_count if pausing else circuit.slow_count + 1
    return replace(circuit, slow_until=until, slow_count=count)


def _failed(circuit: Circuit, now: float) -> Circuit:
    return replace(
        circuit,
        consecutive_failures=circuit.consecutive_failures + 1,
        failing_since=now if circuit.failing_since is None else circuit.failing_since,
    )
