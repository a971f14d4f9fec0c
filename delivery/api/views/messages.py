"""Messages: look at them and their deliveries, read the body, reschedule, cancel."""

import os
from typing import Any, ClassVar

from django.db.models import Q
from django.http import HttpResponse
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app import clock, data_encryption
from channels_app.api import etags
from channels_app.api.authentication import Caller
from channels_app.api.base import ApiView
from channels_app.errors import KeyUnavailable, NotFound
from channels_app.models import Message
from channels_app.rules import ids
from channels_app.steps import note_opening
from delivery.api import bodies, documents, pages, policy, shapes
from delivery.models import Delivery
from delivery.rules.outcome import Outcome
from delivery.runtime import wakeups
from delivery.steps import cancel, payloads, reschedule

MAX_DELIVERIES = 1000
"""Shown with one message."""


class MessageView(ApiView):
    """One message."""

    scopes: ClassVar = {"GET": ("read",), "PATCH": ("publish",), "DELETE": ("publish",)}

    @documents.get_message
    def get(self, request: Request, message_id: str) -> Response:
        """A message, and how each consumer received it."""
        row = policy.message_of(self.caller, message_id)
        return etags.tagged(_with_deliveries(self.caller, row), row.version)

    @documents.patch_message
    def patch(self, request: Request, message_id: str) -> Response:
        """Change priority or instant of a message that waits.

        Its queued deliveries move with it, waiting retries too. Only the message's own producer
        may, and only while nothing of it is in flight (409).
        """
        row = policy.own_message(self.caller, message_id)
        condition = etags.precondition_of(request)
        values = bodies.read(request, bodies.RESCHEDULE)
        principal = policy.principal_of(self.caller, values.pop("reason", ""))
        now = clock.now()
        values = bodies.move_of(values, now)
        changed = reschedule.reschedule(row.id, principal, now=now, condition=condition, **values)
        consumers = Delivery.objects.filter(message_id=row.id, state="queued")
        wakeups.notify_pumps(consumers.values_list("consumer_id", flat=True))
        return etags.tagged(_with_deliveries(self.caller, changed), changed.version)

    @documents.delete_message
    def delete(self, request: Request, message_id: str) -> Response:
        """Cancel what is still queued of a message.

        What is in flight finishes its attempt, and is queued again if that fails. Where nothing
        is queued and something in flight, nothing is cancelled (409): repeat the request then.
        Doing it twice is harmless.
        """
        row = policy.own_message(self.caller, message_id)
        principal = policy.principal_of(self.caller, _reason(request))
        done = cancel.cancel_message(
            row.id,
            principal,
            now=clock.now(),
            slot=os.getpid(),
            condition=etags.precondition_of(request),
            unless_sent=True,
        )
        shown = _with_deliveries(self.caller, done.message)
        return etags.tagged(shown | {"cancelled_count": done.cancelled_count}, done.message.version)


class MessageBodyView(ApiView):
    """The exact bytes of one message."""

    scopes: ClassVar = {"GET": ("read", "receive")}

    @documents.get_body
    def get(self, request: Request, message_id: str) -> HttpResponse:
        """The exact bytes, with the content type that the producer sent, as an attachment."""
        row = policy.message_of(self.caller, message_id)
        if not (self.caller.may("read") or policy.was_sent(self.caller, row)):
            raise NotFound("unknown_message", "There is no such message.")
        if not policy.is_received(self.caller, row):
            if not policy.may_open(self.caller, row.channel):
                detail = "The channel is sensitive: the key needs the scope sensitive."
                raise PermissionDenied(detail, "sensitive_channel")
            _note(self.caller, row, "body")
        payload = payloads.load([row.id]).get(row.id)
        if payload is not None and payload.missing_key:
            raise KeyUnavailable(payload.missing_key)
        if payload is None or payload.body is None:
            sentence = payload.error if payload else "The message was deleted."
            if payload and payload.outcome is Outcome.INTEGRITY_ERROR:
                raise NotFound("integrity_error", sentence)
            raise NotFound("body_unreadable", sentence)
        name = ids.to_public(ids.MESSAGE, row.id)
        return HttpResponse(
            payload.body,
            content_type=payload.content_type or "application/octet-stream",
            # A producer's HTML must not run under this address in somebody's browser.
            headers={
                "Content-Disposition": f'attachment; filename="{name}"',
                "Content-Security-Policy": "default-src 'none'; sandbox",
                "X-Content-Type-Options": "nosniff",
            },
        )


def _with_deliveries(caller: Caller, row: Message) -> dict[str, Any]:
    """A message and how each consumer that the caller may know of received it."""
    own = policy.is_own(caller, row)
    deliveries = Delivery.objects.filter(message_id=row.id).prefetch_related("consumer")
    if not own:
        deliveries = deliveries.filter(Q(consumer__team_id=caller.tenant.team_id))
    channel = row.channel.slug
    shown = [
        shapes.delivery(delivery, channel, delivery.consumer.client_id)
        for delivery in deliveries.order_by("consumer_id")[:MAX_DELIVERIES]
    ]
    return {
        **shapes.message(row, channel, clock.now()),
        "headers": _headers(caller, row),
        "idempotency_key": row.idempotency_key if own else "",
        # Other tenants do not learn who else publishes.
        "producer": row.producer.slug if row.producer and own else None,
        "deliveries": shown,
    }


def _headers(caller: Caller, row: Message) -> dict[str, str] | None:
    if not policy.may_open(caller, row.channel):
        return None
    if row.headers:
        _note(caller, row, "headers")
    return data_encryption.headers_of(row)


def _note(caller: Caller, row: Message, part: str) -> None:
    note_opening.note(caller.actor, f"message:{row}", part, team_id=caller.tenant.team_id)


def _reason(request: Request) -> str:
    reason = request.query_params.get("reason", "")
    if len(reason) > 500 or "\x00" in reason:
        raise pages.refuse("reason", "At most 500 characters, and no NUL.")
    return reason
