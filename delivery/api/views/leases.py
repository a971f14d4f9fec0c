"""Receive messages as a pull consumer, and settle their leases.

Each lease of a request has its own result.
"""

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api.base import ApiView
from delivery.api import bodies, documents, pull
from delivery.rules.outcome import Outcome
from delivery.runtime import leasing


class ReceiveView(ApiView):
    """The messages of one pull consumer."""

    scopes: ClassVar = {"POST": pull.SCOPES}

    @documents.receive
    def post(self, request: Request, channel: str, client_id: str) -> Response:
        """Take messages that are due, the most urgent first, and keep them until their lease ends.

        Any number of workers may receive for one consumer: each message goes to one of them. Waits
        up to `wait_s` seconds when there is nothing, and then answers with none. Acknowledge each
        lease, or the message comes again. A paused consumer's messages wait.
        """
        read = request._request.read
        return Response(pull.receive(self.caller, request.META, read, channel, client_id))


TOO_LONG = "too_long"


class AckView(ApiView):
    """Acknowledge leases."""

    scopes: ClassVar = {"POST": pull.SCOPES}

    @documents.ack_leases
    def post(self, request: Request) -> Response:
        """Acknowledge: these messages are delivered and do not come again.

        A lease that has lapsed still counts, as long as nobody else received the message.
        """
        return Response(pull.acknowledge(self.caller, request.META, request._request.read))


class NackView(ApiView):
    """Report failed handling."""

    scopes: ClassVar = {"POST": pull.SCOPES}

    @documents.nack_leases
    def post(self, request: Request) -> Response:
        """Say that handling failed: a failed attempt, charged to the delivery's budget.

        The message comes again after `delay_s` seconds, or after the consumer's backoff without
        it; at `max_attempts`, or at once with `final`, it is dead.
        """
        asked = bodies.read(request, bodies.NACK)
        return Response(pull.ended(self.caller, asked, Outcome.REJECTED))


class ReleaseView(ApiView):
    """Release leases."""

    scopes: ClassVar = {"POST": pull.SCOPES}

    @documents.release_leases
    def post(self, request: Request) -> Response:
        """Give messages back unhandled, at once or from `delay_s` seconds on; nothing is charged.

        Twenty times: what nobody ever handles ends in the dead letters.
        """
        asked = bodies.read(request, bodies.RELEASE)
        asked["error"] = "Its holder gave it back."
        asked = {"delay_s": 0.0} | asked
        return Response(pull.ended(self.caller, asked, Outcome.INTERRUPTED))


class ExtendView(ApiView):
    """Extend leases."""

    scopes: ClassVar = {"POST": pull.SCOPES}

    @documents.extend_leases
    def post(self, request: Request) -> Response:
        """Let leases end `lease_s` seconds from now, twelve hours after they were taken at most."""
        asked = bodies.read(request, bodies.EXTEND)
        mine, failed = pull.known(self.caller, asked["leases"])
        lease_ms = int(asked.get("lease_s", pull.LEASE_S) * 1000)
        done, too_long = leasing.extend(mine, lease_ms)
        failed |= {mine[lease]: TOO_LONG for lease in too_long}
        return Response(pull.result(mine, done, failed))
