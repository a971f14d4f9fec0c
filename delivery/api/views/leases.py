"""Receive messages as a pull consumer, and settle their leases.

Each lease of a request has its own result.
"""

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api.base import ApiView
from delivery.api import bodies, documents, pull
from delivery.core.outcome import Outcome
from delivery.pull import calls


class ReceiveView(ApiView):
    """The messages of one pull consumer."""

    scopes: ClassVar = {"POST": calls.SCOPES}

    @documents.receive
    def post(self, request: Request, channel: str, client_id: str) -> Response:
        """Claim due messages under a lease, highest priority first.

        Any number of workers may receive for one consumer; each message goes to one of them. If no
        message is due, the call waits up to `wait_s` seconds, and may return none. Acknowledge each
        lease: when it ends, the message can be received again. While a consumer is paused, its
        messages wait.
        """
        read = request._request.read
        return Response(pull.receive(self.principal, request.META, read, channel, client_id))


class AckView(ApiView):
    """Acknowledge leases."""

    scopes: ClassVar = {"POST": calls.SCOPES}

    @documents.ack_leases
    def post(self, request: Request) -> Response:
        """Acknowledge messages: they are delivered and not received again.

        A lease that has ended is still accepted if no other worker has received the message since.
        """
        return Response(pull.acknowledge(self.principal, request.META, request._request.read))


class NackView(ApiView):
    """Report failed handling."""

    scopes: ClassVar = {"POST": calls.SCOPES}

    @documents.nack_leases
    def post(self, request: Request) -> Response:
        """Report that handling failed. It counts as a failed attempt.

        The message is due again after `delay_s` seconds, by default after the consumer's backoff.
        At `max_attempts`, or at once with `final`, the delivery is dead.
        """
        asked = bodies.read(request, bodies.NACK)
        return Response(calls.ended(self.principal, asked, Outcome.REJECTED))


class ReleaseView(ApiView):
    """Release leases."""

    scopes: ClassVar = {"POST": calls.SCOPES}

    @documents.release_leases
    def post(self, request: Request) -> Response:
        """Give messages back unhandled, at once or after `delay_s` seconds.

        Up to twenty times this counts as no failure; after that the message becomes a dead letter.
        """
        return Response(calls.released(self.principal, bodies.read(request, bodies.RELEASE)))


class ExtendView(ApiView):
    """Extend leases."""

    scopes: ClassVar = {"POST": calls.SCOPES}

    @documents.extend_leases
    def post(self, request: Request) -> Response:
        """Extend leases to `lease_s` seconds from now, up to twelve hours in all."""
        return Response(calls.extended(self.principal, bodies.read(request, bodies.EXTEND)))
