"""Receive: what a pull consumer calls for its messages, and waits for them."""

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api.base import ApiView
from delivery.api import documents, pull


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
