"""Receive: what a pull consumer calls for its messages, and waits for them."""

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from channels_app import clock
from channels_app.api.base import ApiView
from channels_app.api.problems import RETRY_AFTER_S, ApiProblem
from channels_app.errors import Conflict, Invalid
from channels_app.rules import times
from delivery.api import bodies, documents, reach, shapes
from delivery.runtime import receiving
from delivery.runtime.receiving import Wish

MOST = 10
LEASE_S = 30.0
NO_PLACE = "Too many calls wait for messages already; ask again, or ask without waiting."

NAMELESS = "Give the worker a name of its own: its keys, and what it holds, are found by that."


class ReceiveView(ApiView):
    """The messages of one pull consumer."""

    scopes: ClassVar = {"POST": ("receive",)}

    @documents.receive
    def post(self, request: Request, channel: str, client_id: str) -> Response:
        """Take messages that are due, the most urgent first, and keep them until their lease ends.

        Any number of workers may receive for one consumer: each message goes to one of them. Waits
        up to `wait_s` seconds when there is nothing, and then answers with none. Acknowledge each
        lease, or the message comes again. A paused consumer's messages wait.
        """
        view = reach.view_of(self.caller, channel, client_id)
        if view.mode != "pull":
            raise Conflict("not_pull", "Messages are sent to this consumer; make it a pull one.")
        asked = bodies.read(request, bodies.RECEIVE, optional=True)
        is_sticky = asked.get("keys") == "sticky"
        is_back = asked.get("resume", False)
        if (is_sticky or is_back) and not asked.get("worker_id"):
            raise Invalid("invalid_fields", NAMELESS, field="worker_id")
        wish = Wish(
            most=asked.get("max", MOST),
            lease_ms=int(asked.get("lease_s", LEASE_S) * 1000),
            worker=asked.get("worker_id") or self.caller.key.key_id,
            settled=asked.get("auto_ack", False),
            sticky=is_sticky,
            resume=is_back,
        )
        handed = receiving.receive_patiently(
            view, wish, asked.get("wait_s", 0.0), owner=self.caller.owner
        )
        if handed is None:
            raise ApiProblem(503, "too_many_polls", NO_PLACE, retry_after_s=RETRY_AFTER_S)
        return Response(
            {
                "messages": [shapes.handed(one, view, settled=wish.settled) for one in handed],
                "now": times.text(clock.now()),
            }
        )
