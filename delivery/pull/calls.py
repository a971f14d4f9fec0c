"""Receive and settle as a program asks, for every door: which consumer and which leases are its."""

from collections.abc import Collection, Mapping
from typing import Any

from channels_app.access.principal import Principal
from channels_app.core.errors import Conflict, Invalid, NotFound
from channels_app.ingest import publication
from channels_app.registry.cache import ConsumerConfig, config_cache
from delivery.core.leases import Lease
from delivery.core.outcome import Outcome
from delivery.pull import leasing
from delivery.pull.receiving import ReceiveRequest
from delivery.serializers.pull import ReceiveSerializer

SCOPES = ("receive",)
RECEIVE = ReceiveSerializer()
MAX_MESSAGES = 10
LEASE_S = 30.0
NO_PLACE = "Too many calls wait for messages already; ask again, or ask without waiting."
NAMELESS = "Give the worker a name of its own: its keys, and what it holds, are found by that."
EXPIRED, UNKNOWN, TOO_LONG = "expired", "unknown", "too_long"

TokensByLease = dict[Lease, str]
"""Leases with their tokens."""


def consumer_of(principal: Principal, channel: str, client_id: str) -> ConsumerConfig:
    """Return the pull consumer with this name, without a query. Raises NotFound and Conflict.

    A retired consumer is not found.
    """
    publication.channel_of(channel)
    consumer = config_cache.consumer(channel, client_id)
    if consumer is None or not principal.owns(consumer.team_id):
        raise NotFound("unknown_consumer", f"The channel has no consumer {client_id}.")
    if consumer.mode != "pull":
        raise Conflict("not_pull", "Messages are sent to this consumer; make it a pull one.")
    return consumer


def request_of(principal: Principal, asked: Mapping[str, Any]) -> ReceiveRequest:
    """Return the request for checked fields of `RECEIVE`. Raises Invalid."""
    is_sticky = asked.get("keys") == "sticky"
    is_back = asked.get("resume", False)
    if (is_sticky or is_back) and not asked.get("worker_id"):
        raise Invalid("invalid_fields", NAMELESS, field="worker_id")
    return ReceiveRequest(
        most=asked.get("max", MAX_MESSAGES),
        lease_ms=int(asked.get("lease_s", LEASE_S) * 1000),
        worker=asked.get("worker_id") or principal.key_id,
        settled=asked.get("auto_ack", False),
        sticky=is_sticky,
        resume=is_back,
    )


def ended(principal: Principal, asked: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    """Settle the leases with this outcome; returns each one's result."""
    by_lease, failed = _own_leases(principal, asked["leases"])
    done = leasing.end(
        by_lease,
        outcome,
        delay_s=asked.get("delay_s"),
        error=asked.get("error", ""),
        is_final=asked.get("final", False),
    )
    return _result(by_lease, done, failed)


def released(principal: Principal, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Give the messages of the leases back; returns each lease's result."""
    asked = {"delay_s": 0.0} | dict(asked) | {"error": "Its worker released it."}
    return ended(principal, asked, Outcome.INTERRUPTED)


def extended(principal: Principal, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Extend the leases; returns each one's result."""
    by_lease, failed = _own_leases(principal, asked["leases"])
    done, too_long = leasing.extend(by_lease, int(asked.get("lease_s", LEASE_S) * 1000))
    failed |= {by_lease[lease]: TOO_LONG for lease in too_long}
    return _result(by_lease, done, failed)


def _own_leases(
    principal: Principal, tokens: Collection[str]
) -> tuple[TokensByLease, dict[str, str]]:
    """Return the leases that the caller may see with their tokens, and errors for the others."""
    leases = {token: leasing.lease_of(token) for token in tokens}
    theirs = _received_by(principal, {lease.consumer_id for lease in leases.values() if lease})
    by_lease = {
        lease: token for token, lease in leases.items() if lease and lease.consumer_id in theirs
    }
    failed = dict.fromkeys(tokens, UNKNOWN)
    for token in by_lease.values():
        del failed[token]
    return by_lease, failed


def _received_by(principal: Principal, consumer_ids: Collection[int]) -> set[int]:
    """Return those of the consumers for which the caller may receive."""
    consumers = config_cache.consumers(consumer_ids) if consumer_ids else {}
    return {
        consumer.id
        for consumer in map(consumers.get, consumer_ids)
        if consumer
        and principal.owns(consumer.team_id)
        and principal.may_use(consumer.channel_slug)
    }


def _result(
    by_lease: TokensByLease, done: Collection[Lease], failed: Mapping[str, str]
) -> dict[str, Any]:
    """Return the response: settled leases, and failed ones with errors."""
    lost = {token: EXPIRED for lease, token in by_lease.items() if lease not in done}
    return {
        "done": [token for lease, token in by_lease.items() if lease in done],
        "failed": [{"lease": token, "error": error} for token, error in {**lost, **failed}.items()],
    }
