"""Acknowledgement by a later call: the address that a delivery brought is the whole secret."""

import os

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app import clock
from channels_app.api.base import AuthenticatedRequest, OpenView
from channels_app.rules import fields
from channels_app.rules.fields import Field
from delivery.api import bodies, shapes
from delivery.runtime import wakeups
from delivery.steps import acknowledge

WORKING = "working"
BODY: dict[str, Field] = {
    "status": Field(fields.nullable(fields.choice("ok", "failed", WORKING))),
    "error": Field(fields.nullable(fields.text(2000, lines=True))),
}


class AckView(OpenView):
    """One delivery, by the token that it brought."""

    @extend_schema(exclude=True)
    def post(self, request: Request, token: str) -> Response:
        """The consumer has it, has failed after all, or is at work and asks to be waited for."""
        # Looked at first: of a stranger no body is waited for.
        number = acknowledge.opened(token)
        values = bodies.read(request, BODY, optional=True, sender=AuthenticatedRequest(number))
        status = values.get("status", "ok")
        if status == WORKING:
            answered = acknowledge.extend_wait(number, now=clock.now())
        else:
            answered = acknowledge.acknowledge(
                number, ok=status == "ok", now=clock.now(), slot=os.getpid()
            )
        if answered.due:
            wakeups.notify_pumps(answered.due)
        return Response({"result": answered.heard, "state": shapes.state(answered.delivery)})
