"""Accept acknowledgements in later calls, from consumers and from their providers (S3-39).

The URL that a delivery carried is the only credential.
"""

import hmac
import os
import re
from collections import Counter as Tally
from datetime import datetime
from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api.base import OpenView
from channels_app.core import provider_ids as settings
from channels_app.core.errors import Forbidden, Invalid, NotFound, TooLarge
from channels_app.database import clock
from channels_app.ingest.body import AuthenticatedRequest, parse_json, read_body, whole_json
from channels_app.models import Consumer
from channels_app.registry import inbound_addresses
from delivery.acks import callbacks, correlations
from delivery.api import bodies
from delivery.core import acks
from delivery.core.acks import AckResult, ProviderStatus

MAX_BYTES = 3 * 1024 * 1024
"""Maximum bytes of a callback: the maximum that Meta sends."""
_CHALLENGE = re.compile(r"[A-Za-z0-9._~-]{1,200}")


class AckView(OpenView):
    """One delivery, by the token that it carried."""

    @extend_schema(exclude=True)
    def post(self, request: Request, token: str) -> Response:
        """The consumer has it, has failed after all, or is at work and asks to be waited for."""
        # Checked first, so that no body is read for an invalid token.
        number = callbacks.opened(token)
        values = bodies.read(
            request, bodies.CALLBACK, optional=True, sender=AuthenticatedRequest(number)
        )
        status = values.get("status", "ok")
        if status == "working":
            answered = callbacks.extend_wait(number, now=clock.now())
        else:
            answered = callbacks.acknowledge(
                number, ok=status == "ok", now=clock.now(), slot=os.getpid()
            )
        return Response({"result": answered.result, "state": answered.delivery.shown})


class InboundView(OpenView):
    """Callbacks of a consumer's provider, signed if the consumer requires it."""

    @extend_schema(exclude=True)
    def get(self, request: Request, token: str) -> HttpResponse:
        """A provider asks whether the address is meant (hub.challenge)."""
        setting = settings.of(inbound_addresses.find_consumer(token).ack)
        asked = request.query_params
        wanted = setting["verify_token"] if setting else None
        given = asked.get("hub.verify_token", "")
        if wanted is not None and not hmac.compare_digest(given.encode(), wanted.encode()):
            raise Forbidden("wrong_token", "hub.verify_token is not the consumer's verify_token.")
        challenge = asked.get("hub.challenge", "")
        if asked.get("hub.mode") != "subscribe" or not _CHALLENGE.fullmatch(challenge):
            detail = "Send hub.mode=subscribe and a hub.challenge of letters and digits."
            raise Invalid("invalid_parameter", detail, field="hub.challenge")
        return HttpResponse(
            challenge, content_type="text/plain", headers={"X-Content-Type-Options": "nosniff"}
        )

    @extend_schema(exclude=True)
    def post(self, request: Request, token: str) -> Response:
        """What has become of messages; answers how many words were heard as what."""
        # Checked first, so that no body is read for an invalid token.
        consumer = inbound_addresses.find_consumer(token)
        statuses = self._statuses(request, consumer)
        now = clock.now()
        reports = correlations.find(consumer.id, statuses, now)
        counts = Tally(report.result or _acknowledge(report, now) for report in reports)
        return Response({"results": {name.value: count for name, count in counts.items()}})

    def _statuses(self, request: Request, consumer: Consumer) -> list[ProviderStatus]:
        meta, read = request.META, request._request.read
        body = read_body(
            *(AuthenticatedRequest(consumer.id), meta, read, MAX_BYTES), check=whole_json
        )
        setting: Any = settings.of(consumer.ack)
        if setting["signature"]:
            address = inbound_addresses.load(consumer)
            signature = meta.get("HTTP_X_HUB_SIGNATURE_256", "")
            if address is None or not settings.is_signed(signature, body, address.secret):
                detail = "X-Hub-Signature-256 does not match this body and the consumer's secret."
                # Not 401, which requires a WWW-Authenticate header (RFC 9110, 11.6.1).
                raise Forbidden("wrong_signature", detail, field="X-Hub-Signature-256")
        try:
            return list(acks.words(setting, parse_json(body)))
        except ValueError as error:
            raise TooLarge("too_many_words", str(error)) from None


def _acknowledge(report: correlations.ProviderReport, now: datetime) -> AckResult:
    assert report.delivery_id is not None
    try:
        answered = callbacks.acknowledge(
            report.delivery_id, ok=report.ok, now=now, slot=os.getpid()
        )
    except NotFound:
        return AckResult.LATE  # its delivery has been deleted since
    return answered.result
