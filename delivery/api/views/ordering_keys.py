"""List the ordering keys of a consumer; pause or resume one, or skip its head."""

from collections.abc import Iterable
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.access.principal import Principal
from channels_app.api import cursor
from channels_app.api.base import ApiView
from channels_app.core import ids
from channels_app.core.errors import NotFound
from channels_app.database import clock
from channels_app.models import Consumer
from delivery.api import bodies, documents, policy
from delivery.core.ordering import key_number as key_number_of
from delivery.models import OrderingKey
from delivery.ordering import hot_keys
from delivery.queue import ordering_keys
from delivery.serializers.filters import OrderingKeyQuerySerializer
from delivery.serializers.ordering_keys import OrderingKeySerializer

QUERY = OrderingKeyQuerySerializer()


class OrderingKeysView(ApiView):
    """A consumer's ordering keys with unfinished deliveries."""

    scopes: ClassVar = {"GET": ("read",)}

    @documents.list_ordering_keys
    def get(self, request: Request, channel: str, client_id: str) -> Response:
        """List the consumer's ordering keys, the one with the oldest head first.

        The list has no further pages. `ordering_key` finds any key.
        """
        consumer = policy.consumer_of(self.principal, channel, client_id)
        page = cursor.read(request)
        rows = OrderingKey.objects.filter(consumer_id=consumer.id).order_by("head_at")
        wanted = page.read(QUERY)
        if "ordering_key" in wanted:
            rows = rows.filter(id=key_number_of(consumer.id, wanted["ordering_key"]))
        if "state" in wanted:
            rows = rows.filter(OrderingKey.STATES[wanted["state"]])
        return Response({"items": _shown(rows[: page.limit], consumer)})


class OrderingKeyView(ApiView):
    """One ordering key."""

    scopes: ClassVar = {"GET": ("read",)}

    @documents.get_ordering_key
    def get(self, request: Request, channel: str, client_id: str, ordering_key_id: str) -> Response:
        """Return the ordering key: its head, since when, and how many deliveries wait behind it."""
        consumer = policy.consumer_of(self.principal, channel, client_id)
        return Response(_shown([_key_row(consumer, ordering_key_id)], consumer)[0])


class _HeldKey(ApiView):
    """An action on one ordering key."""

    scopes: ClassVar = {"POST": ("replay",)}

    def _change(
        self, request: Request, channel: str, client_id: str, ordering_key_id: str, what: str
    ) -> Response:
        consumer = policy.consumer_of(self.principal, channel, client_id)
        key_row = _key_row(consumer, ordering_key_id)
        serializer = bodies.SKIP if what == "skip" else bodies.REPAIR
        values = bodies.read(request, serializer, optional=True)
        principal = self.principal.because(values.get("reason", ""))
        _carry_out(key_row, principal, what, values)
        after = OrderingKey.objects.filter(id=key_row.id).first()
        return Response(_shown([after or _empty(key_row)], consumer)[0])


class OrderingKeyPauseView(_HeldKey):
    """Pause one key."""

    @documents.pause_ordering_key
    def post(
        self, request: Request, channel: str, client_id: str, ordering_key_id: str
    ) -> Response:
        """Start no more deliveries of the key. Requests in flight finish; other keys continue."""
        return self._change(request, channel, client_id, ordering_key_id, "pause")


class OrderingKeyResumeView(_HeldKey):
    """Resume one key."""

    @documents.resume_ordering_key
    def post(
        self, request: Request, channel: str, client_id: str, ordering_key_id: str
    ) -> Response:
        """Resume a paused key. Repeating the call changes nothing."""
        return self._change(request, channel, client_id, ordering_key_id, "resume")


class OrderingKeySkipView(_HeldKey):
    """Skip the head of one key."""

    @documents.skip_ordering_key
    def post(
        self, request: Request, channel: str, client_id: str, ordering_key_id: str
    ) -> Response:
        """Skip the head of the key: a dead head stays dead, a waiting one is cancelled.

        Name the `head`, so that a repeated call does not skip the next one. Refused (409) if
        another delivery is the head by now, or if the head is in flight.
        """
        return self._change(request, channel, client_id, ordering_key_id, "skip")


def _shown(rows: Iterable[OrderingKey], consumer: Consumer) -> list[dict[str, Any]]:
    serializer = OrderingKeySerializer.at_rate(hot_keys.most_per_second(consumer.id))
    shown = []
    for row in rows:
        row.consumer = consumer  # without a query
        shown.append(serializer.to_representation(row))
    return shown


def _carry_out(
    key_row: OrderingKey, principal: Principal, what: str, values: dict[str, Any]
) -> None:
    now = clock.now()
    if what == "pause":
        ordering_keys.pause(key_row.id, principal, now=now)
    elif what == "resume":
        ordering_keys.resume(key_row.id, principal, now=now)
    else:
        head_id = values.get("head", key_row.head_id or 0)
        ordering_keys.skip(key_row.id, head_id, principal, now=now)


def _key_row(consumer: Consumer, text: str) -> OrderingKey:
    number = ids.from_public(ids.ORDERING_KEY, text)
    row = OrderingKey.objects.filter(id=number, consumer_id=consumer.id).first() if number else None
    if row is None:
        raise NotFound("unknown_ordering_key", "The ordering key has no unfinished deliveries.")
    return row


def _empty(key_row: OrderingKey) -> OrderingKey:
    """Represent a key whose last delivery this call ended."""
    key_row.head_id, key_row.waiting_count, key_row.paused_at, key_row.blocked_at = (
        None,
        0,
        None,
        None,
    )
    return key_row
