"""List, move and cancel messages of a channel, one by one or up to 200 at once."""

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar

from django.db.models import Q, QuerySet
from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.access.principal import Principal
from channels_app.api import base, cursor, problems
from channels_app.api.base import ApiView
from channels_app.api.views.publish import PublishView
from channels_app.core import ids
from channels_app.core.errors import BrokerError, Forbidden, Invalid, KeyUnavailable, NotFound
from channels_app.core.http import ALWAYS, Precondition
from channels_app.database import clock
from channels_app.database.raw import by_index
from channels_app.ingest import publication
from channels_app.models import IdempotencyRecord, Message
from channels_app.registry import data_encryption, viewing
from channels_app.registry.cache import ChannelConfig
from delivery.api import bodies, documents, policy
from delivery.core.outcome import Outcome
from delivery.models import Delivery
from delivery.queue import cancel, reschedule
from delivery.serializers.base import RequestSerializer
from delivery.serializers.filters import DeliveryFilter, MessageQuerySerializer
from delivery.serializers.messages import (
    CancelledMessageSerializer,
    ManyResultsSerializer,
    MessageSerializer,
    MessageWithDeliveriesSerializer,
)
from delivery.serializers.requests import MAX_MESSAGES
from delivery.transport import payloads

QUERY = MessageQuerySerializer()
STATES: dict[str, Q] = {
    **{state.value: Q(state=state.value) for state in Message.State},
    **{shown.value: Message.in_state(shown) for shown in Message.Shown},
}
"""Values of ``state=``, besides ``scheduled``."""
Item = dict[str, Any]
Result = dict[str, Any]
Step = Callable[[Mapping[int, Item], Principal, datetime], Mapping[int, Result | BrokerError]]
"""Changes messages by key, each by its item."""
MAX_DELIVERIES = 1000
"""Maximum deliveries shown with one message."""


class ChannelMessagesView(PublishView):
    """The messages of a channel; the parent class publishes at the same URL."""

    scopes = PublishView.scopes | {"GET": ("read",)}

    @documents.list_messages
    def get(self, request: Request, channel: str) -> Response:
        """List the channel's messages, newest first.

        With a filter a page may have fewer items than `limit`, even none, although `next` is set:
        each request reads a limited number of rows.
        """
        config = publication.channel_of(channel)
        page = cursor.read(request)
        now = clock.now()
        values = page.read(QUERY)
        wanted = DeliveryFilter.of(values)
        condition = wanted.message_condition & policy.messages_on(self.principal, config.id)
        if "state" in values:
            condition &= {**STATES, "scheduled": Message.scheduled(now)}[values["state"]]
        show = MessageSerializer(
            context=MessageSerializer.context_for(channel, now)
        ).to_representation
        rows = by_index(
            Message.objects.filter(
                channel_id=config.id, id__gte=wanted.first_id, id__lte=wanted.last_message_id
            ),
            "message_channel",
        )
        if "idempotency_key" in values:
            rows = self._with_key(rows, config, values["idempotency_key"])
        return Response(page.answer([Message.with_open(rows)], show, condition))

    def _with_key(
        self, rows: QuerySet[Message], channel: ChannelConfig, key: str
    ) -> QuerySet[Message]:
        """Return the row that the caller published with an idempotency key."""
        producer = self.principal.producer
        digest = channel.key_digest(producer.id if producer else None, key)
        open_ones = IdempotencyRecord.objects.filter(digest=digest, expires_at__gt=clock.now())
        return rows.filter(id__in=list(open_ones.values_list("message_id", flat=True)))


class MoveView(ApiView):
    """Move many messages on the timeline."""

    scopes: ClassVar = {"POST": ("publish",)}

    @documents.move_messages
    def post(self, request: Request) -> Response:
        """Change the priority or due time of up to 200 waiting messages.

        Each message is changed or refused on its own, like a PATCH of it. `version` stands for
        If-Match.
        """

        def move(items: Mapping[int, Item], principal: Principal, now: datetime) -> dict[int, Any]:
            results: dict[int, Result | BrokerError] = {}
            moves: dict[int, reschedule.Move] = {}
            for key, item in items.items():
                condition = _condition(item)
                try:
                    values = bodies.move_of(item, now)
                except BrokerError as refused:
                    results[key] = refused
                else:
                    moves[key] = reschedule.Move(condition=condition, **values)
            for key, done in reschedule.reschedule_many(moves, principal, now=now).items():
                if isinstance(done, BrokerError):
                    results[key] = done
                    continue
                results[key] = {"status": 200, "version": done.version}
            return results

        return _each(self, request, bodies.MOVE_ITEM, move)


class CancelView(ApiView):
    """Cancel many messages."""

    scopes: ClassVar = {"POST": ("publish",)}

    @documents.cancel_messages
    def post(self, request: Request) -> Response:
        """Cancel the queued deliveries of up to 200 messages.

        Each message is cancelled or refused on its own, like a DELETE of it. `version` stands for
        If-Match.
        """

        def take_back(
            items: Mapping[int, Item], principal: Principal, now: datetime
        ) -> dict[int, Any]:
            done = cancel.cancel_messages(
                {key: _condition(item) for key, item in items.items()},
                principal,
                now=now,
                slot=os.getpid(),
                unless_sent=True,
            )
            return {
                key: outcome
                if isinstance(outcome, BrokerError)
                else {
                    "status": 200,
                    "version": outcome.message.version,
                    "cancelled_count": outcome.cancelled_count,
                }
                for key, outcome in done.items()
            }

        return _each(self, request, bodies.CANCEL_ITEM, take_back)


class MessageView(ApiView):
    """One message."""

    scopes: ClassVar = {"GET": ("read",), "PATCH": ("publish",), "DELETE": ("publish",)}

    @documents.get_message
    def get(self, request: Request, message_id: str) -> Response:
        """Return the message with its deliveries."""
        row = policy.message_of(self.principal, message_id)
        return base.tagged(_with_deliveries(self.principal, row), row.version)

    @documents.patch_message
    def patch(self, request: Request, message_id: str) -> Response:
        """Change the priority or due time of a waiting message.

        Its queued deliveries change with it, including retries. Only the message's own producer may
        do this, and only while none of its deliveries is in flight (409).
        """
        row = policy.own_message(self.principal, message_id)
        condition = base.precondition_of(request)
        values = bodies.read(request, bodies.RESCHEDULE)
        principal = self.principal.because(values.pop("reason", ""))
        now = clock.now()
        values = bodies.move_of(values, now)
        changed = reschedule.reschedule(row.id, principal, now=now, condition=condition, **values)
        return base.tagged(_with_deliveries(self.principal, changed), changed.version)

    @documents.delete_message
    def delete(self, request: Request, message_id: str) -> Response:
        """Cancel the queued deliveries of a message.

        Attempts in flight finish, and their deliveries are queued again if they fail. If deliveries
        are in flight and none is queued, nothing is cancelled (409): repeat the request later.
        Cancelling twice changes nothing.
        """
        row = policy.own_message(self.principal, message_id)
        values = cursor.read_query(bodies.REPAIR, request.query_params)
        principal = self.principal.because(values.get("reason", ""))
        done = cancel.cancel_message(
            row.id,
            principal,
            now=clock.now(),
            slot=os.getpid(),
            condition=base.precondition_of(request),
            unless_sent=True,
        )
        context = _context(self.principal, done.message)
        context["cancelled_count"] = lambda _: done.cancelled_count
        shown = CancelledMessageSerializer(done.message, context=context)
        return base.tagged(shown.data, done.message.version)


class MessageBodyView(ApiView):
    """The exact bytes of one message."""

    scopes: ClassVar = {"GET": ("read", "receive")}

    @documents.get_body
    def get(self, request: Request, message_id: str) -> HttpResponse:
        """Return the exact bytes as an attachment, with the producer's content type."""
        row = policy.message_of(self.principal, message_id)
        if not (self.principal.may("read") or policy.was_sent(self.principal, row)):
            raise NotFound("unknown_message", "There is no such message.")
        if not policy.is_received(self.principal, row):
            if not self.principal.may_open(row.channel):
                detail = "The channel is sensitive: the key needs the scope sensitive."
                raise Forbidden("sensitive_channel", detail)
            _note(self.principal, row, "body")
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
            # A producer's HTML must not run under this origin in a browser.
            headers={
                "Content-Disposition": f'attachment; filename="{name}"',
                "Content-Security-Policy": "default-src 'none'; sandbox",
                "X-Content-Type-Options": "nosniff",
            },
        )


def _condition(item: Item) -> Precondition:
    """Return the version that the message must have."""
    version = item.pop("version", None)
    return ALWAYS if version is None else Precondition(frozenset({version}), must_exist=True)


def _each(
    view: ApiView, request: Request, item_serializer: RequestSerializer, step: Step
) -> Response:
    """Return the result of each item, in the request's order. Raises BrokerError and Invalid."""
    values = bodies.read(request, bodies.MANY)
    items = values["messages"]
    if not isinstance(items, list):
        raise Invalid("invalid_fields", "Send a list of objects.", field="messages")
    if len(items) > MAX_MESSAGES:
        raise Invalid("batch_too_large", f"Send at most {MAX_MESSAGES} at once.", field="messages")
    principal = view.principal.because(values.get("reason", ""))
    results: dict[int, Result | Exception] = {}
    wanted: dict[int, Item] = {}
    for place, item in enumerate(items):
        try:
            wanted[place] = item_serializer.read(item)
        except Invalid as refused:
            results[place] = refused
    rows = policy.own_messages(view.principal, {item["id"] for item in wanted.values()})
    keys: dict[int, int] = {}
    for place, item in wanted.items():
        row = rows[item.pop("id")]
        if isinstance(row, Exception):
            results[place] = row
        else:
            keys[place] = row.id
    # A repeated message is changed repeatedly, in the order of the request.
    while keys:
        turn = {key: place for place, key in reversed(keys.items())}
        done = step({key: wanted[place] for key, place in turn.items()}, principal, clock.now())
        for key, place in turn.items():
            results[place] = done[key]
            del keys[place]
    shown: list[Result] = [
        {"id": _name(item)} | _result(results[place]) for place, item in enumerate(items)
    ]
    count = sum(result["status"] == 200 for result in shown)
    many = {"items": shown, "done": count, "refused": len(shown) - count}
    return Response(ManyResultsSerializer.show(many), status=207)


def _name(item: object) -> str | None:
    name = item.get("id") if isinstance(item, dict) else None
    return (
        name[:100].encode("ascii", "backslashreplace").decode() if isinstance(name, str) else None
    )


def _result(result: Result | Exception) -> Result:
    if isinstance(result, BrokerError):
        problem = problems.document(result.status, result.code, result.detail, field=result.field)
    else:
        assert not isinstance(result, Exception)
        return result
    names = ("status", "code", "detail", "field")
    return {name: problem[name] for name in names if name in problem}


def _with_deliveries(principal: Principal, row: Message) -> dict[str, Any]:
    return MessageWithDeliveriesSerializer(row, context=_context(principal, row)).data


def _context(principal: Principal, row: Message) -> dict[str, Callable[[Message], Any]]:
    """Return what the caller may see of a message, for MessageWithDeliveriesSerializer."""
    own = policy.is_own(principal, row)
    deliveries = Delivery.objects.filter(message_id=row.id).prefetch_related("consumer")
    if not own:
        deliveries = deliveries.filter(principal.owned("consumer__team_id"))
    shown = deliveries.order_by("consumer_id")[:MAX_DELIVERIES]
    for delivery in shown:
        delivery.channel = row.channel  # without a query
    return {
        **MessageSerializer.context_for(row.channel.slug, clock.now()),
        "headers": lambda row: _headers(principal, row),
        "idempotency_key": lambda row: row.idempotency_key if own else "",
        # Other teams must not learn who else publishes.
        "producer": lambda row: row.producer.slug if row.producer and own else None,
        "deliveries": lambda _: shown,
    }


def _headers(principal: Principal, row: Message) -> dict[str, str] | None:
    if not principal.may_open(row.channel):
        return None
    if row.headers:
        _note(principal, row, "headers")
    return data_encryption.headers_of(row)


def _note(principal: Principal, row: Message, part: str) -> None:
    viewing.note(principal, f"message:{row}", part)
