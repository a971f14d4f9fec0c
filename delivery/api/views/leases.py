"""Leases: what the holder says of what it received; each lease of a request has its own result."""

from collections.abc import Collection
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api.authentication import Caller
from channels_app.api.base import ApiView
from delivery.api import bodies, documents, reach
from delivery.api.views.receive import LEASE_S
from delivery.rules.leases import Lease
from delivery.rules.outcome import Outcome
from delivery.runtime import leasing

EXPIRED, UNKNOWN, TOO_LONG = "expired", "unknown", "too_long"


class AckView(ApiView):
    """Done."""

    scopes: ClassVar = {"POST": ("receive",)}

    @documents.ack_leases
    def post(self, request: Request) -> Response:
        """Acknowledge: these messages are delivered and do not come again.

        A lease that has lapsed still counts, as long as nobody else received the message.
        """
        asked = bodies.read(request, bodies.ACK)
        return _ended(self.caller, asked, Outcome.DELIVERED)


class NackView(ApiView):
    """Failed."""

    scopes: ClassVar = {"POST": ("receive",)}

    @documents.nack_leases
    def post(self, request: Request) -> Response:
        """Say that handling failed: a failed attempt, charged to the delivery's budget.

        The message comes again after `delay_s` seconds, or after the consumer's backoff without
        it; at `max_attempts` it is dead.
        """
        asked = bodies.read(request, bodies.NACK)
        return _ended(self.caller, asked, Outcome.REJECTED)


class ReleaseView(ApiView):
    """Not now."""

    scopes: ClassVar = {"POST": ("receive",)}

    @documents.release_leases
    def post(self, request: Request) -> Response:
        """Give messages back unhandled, at once or from `delay_s` seconds on; nothing is charged.

        Twenty times: what nobody ever handles ends in the dead letters.
        """
        asked = bodies.read(request, bodies.RELEASE)
        asked["error"] = "Its holder gave it back."
        return _ended(self.caller, {"delay_s": 0.0} | asked, Outcome.INTERRUPTED)


class ExtendView(ApiView):
    """A little longer."""

    scopes: ClassVar = {"POST": ("receive",)}

    @documents.extend_leases
    def post(self, request: Request) -> Response:
        """Let leases end `lease_s` seconds from now, twelve hours after they were taken at most."""
        asked = bodies.read(request, bodies.EXTEND)
        known, failed = _known(self.caller, asked["leases"])
        lease_ms = int(asked.get("lease_s", LEASE_S) * 1000)
        done, too_long = leasing.extend(known, lease_ms)
        failed |= {known[lease]: TOO_LONG for lease in too_long}
        return _result(known, done, failed)


def _ended(caller: Caller, asked: dict[str, Any], outcome: Outcome) -> Response:
    known, failed = _known(caller, asked["leases"])
    done = leasing.end(
        known,
        outcome,
        delay_s=asked.get("delay_s"),
        error=asked.get("error", ""),
    )
    return _result(known, done, failed)


def _known(caller: Caller, tokens: list[str]) -> tuple[dict[Lease, str], dict[str, str]]:
    """The leases that exist for the caller with their tokens, and why others failed."""
    found = {token: leasing.lease_of(token) for token in tokens}
    mine = reach.received_by(caller, {lease.consumer_id for lease in found.values() if lease})
    known = {lease: token for token, lease in found.items() if lease and lease.consumer_id in mine}
    failed = dict.fromkeys(tokens, UNKNOWN)
    for token in known.values():
        del failed[token]
    return known, failed


def _result(known: dict[Lease, str], done: Collection[Lease], failed: dict[str, str]) -> Response:
    failed = {token: EXPIRED for lease, token in known.items() if lease not in done} | failed
    return Response(
        {
            "done": [token for lease, token in known.items() if lease in done],
            "failed": [{"lease": token, "error": error} for token, error in failed.items()],
        }
    )
