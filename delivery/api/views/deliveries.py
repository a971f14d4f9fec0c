"""List, read, replay and cancel deliveries of a consumer, and send a test delivery."""

import os
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api import base, cursor
from channels_app.api.base import ApiView, json_object
from channels_app.api.cursor import CursorPage
from channels_app.core import ids
from channels_app.core.errors import Conflict, Invalid
from channels_app.database import clock
from channels_app.models import Consumer
from channels_app.registry import viewing
from channels_app.registry.cache import config_cache
from delivery import replay
from delivery.api import bodies, documents, policy
from delivery.models import Attempt, Delivery
from delivery.queue import cancel, high_watermark
from delivery.serializers.deliveries import (
    AttemptSerializer,
    DeliverySerializer,
    DeliveryWithAttemptsSerializer,
    NoteSerializer,
    ProbeSerializer,
)
from delivery.serializers.filters import (
    DeadLetterQuerySerializer,
    DeliveryFilter,
    DeliveryQuerySerializer,
    NoteQuerySerializer,
)
from delivery.transport.test_delivery import probe

DELIVERIES, DEAD_LETTERS = DeliveryQuerySerializer(), DeadLetterQuerySerializer()
NOTES = NoteQuerySerializer()
MAX_ATTEMPTS = 200
"""Maximum attempts shown with one delivery, the newest ones."""


class ConsumerTestView(ApiView):
    """A test delivery."""

    scopes: ClassVar = {"POST": ("register",)}

    @documents.test_consumer
    def post(self, request: Request, channel: str, client_id: str) -> Response:
        """Send the consumer a signed sample and return its response.

        Waits up to 30 seconds. The sample is the example of an event type that the consumer's
        filter matches. It carries `Hookstation-Test: true` and is not stored. Paused consumers can
        be tested too. Few tests run at once, and one per team: after a 429 try again in a moment.
        """
        consumer = policy.consumer_of(self.principal, channel, client_id)
        if json_object(request, optional=True):
            raise Invalid("invalid_fields", "A test takes no fields: send {} or an empty body.")
        config = config_cache.consumers({consumer.id}).get(consumer.id)
        if config is None:
            raise Conflict(
                "consumer_retired", "The consumer is retired: the broker sends it nothing."
            )
        probed = probe(config, team_id=self.principal.team_id)
        return Response(ProbeSerializer.show(probed))


class DeliveryView(ApiView):
    """One delivery with its attempts."""

    scopes: ClassVar = {"GET": ("read",)}

    @documents.get_delivery
    def get(self, request: Request, delivery_id: str) -> Response:
        """Return the delivery with its newest 200 attempts."""
        row = policy.delivery_of(self.principal, delivery_id)
        attempts = Attempt.objects.filter(delivery_id=row.id).order_by("-number")
        newest = list(attempts[:MAX_ATTEMPTS])
        may_open = self.principal.may_open(row.channel)
        if may_open and any(attempt.answer_headers or attempt.answer_excerpt for attempt in newest):
            viewing.note(self.principal, f"delivery:{row}", "answers")
        context = {
            "roundtrip": lambda row: row.roundtrip(newest),
            "attempts": lambda _: newest[::-1],
            **AttemptSerializer.context_for(
                for_operator=self.principal.is_operator, may_open=may_open
            ),
        }
        shown = DeliveryWithAttemptsSerializer(row, context=context)
        return base.fresh(request, shown.data, row.version)


class DeliveryReplayView(ApiView):
    """Replay one delivery."""

    scopes: ClassVar = {"POST": ("replay",)}

    @documents.replay_delivery
    def post(self, request: Request, delivery_id: str) -> Response:
        """Queue a finished delivery again, due now and with a fresh budget of attempts.

        Its history is kept. Refused (409) while it is unfinished, when the message has expired, and
        if the consumer is retired.
        """
        row = policy.delivery_of(self.principal, delivery_id)
        reason = bodies.read(request, bodies.REPAIR, optional=True).get("reason", "")
        principal = self.principal.because(reason)
        after = replay.replay_one(row.id, principal, now=clock.now(), slot=os.getpid())
        body = DeliverySerializer.show_of(after, row.consumer)
        return base.tagged(body, after.version, status=202, location=body["url"])


class DeliveryCancelView(ApiView):
    """Cancel one delivery."""

    scopes: ClassVar = {"POST": ("replay",)}

    @documents.cancel_delivery
    def post(self, request: Request, delivery_id: str) -> Response:
        """Cancel a queued delivery. Refused (409) if it is not queued."""
        row = policy.delivery_of(self.principal, delivery_id)
        reason = bodies.read(request, bodies.REPAIR, optional=True).get("reason", "")
        principal = self.principal.because(reason)
        after = cancel.cancel_one(row.id, principal, now=clock.now(), slot=os.getpid())
        body = DeliverySerializer.show_of(after, row.consumer)
        return base.tagged(body, after.version)


class ConsumerDeliveriesView(ApiView):
    """A consumer's deliveries."""

    scopes: ClassVar = {"GET": ("read",)}

    @documents.list_deliveries
    def get(self, request: Request, channel: str, client_id: str) -> Response:
        """List the consumer's deliveries, newest first.

        With a filter other than `state` a page may have fewer items than `limit`, even none,
        although `next` is set: each request reads a limited number of rows.
        """
        consumer = policy.consumer_of(self.principal, channel, client_id)
        page = cursor.read(request)
        return _listed(page, consumer, DeliveryFilter.of(page.read(DELIVERIES)))


class DeadLettersView(ApiView):
    """A consumer's dead letters."""

    scopes: ClassVar = {"GET": ("read",)}

    @documents.list_dead_letters
    def get(self, request: Request, channel: str, client_id: str) -> Response:
        """List the consumer's dead deliveries, newest first.

        With a filter a page may have fewer items than `limit`, even none, although `next` is set.
        """
        consumer = policy.consumer_of(self.principal, channel, client_id)
        page = cursor.read(request)
        values = page.read(DEAD_LETTERS)
        return _listed(page, consumer, DeliveryFilter.of({**values, "states": "dead"}))


class ConsumerMessagesView(ApiView):
    """Messages sent to a consumer, oldest first, for comparison with what it received."""

    scopes: ClassVar = {"GET": ("read", "receive")}

    @documents.compare_notes
    def get(self, request: Request, channel: str, client_id: str) -> Response:
        """List the messages sent to the consumer, oldest first, up to two seconds ago.

        Compare them with what arrived, and replay missing ones. Keep the last `message_id` and send
        it as `after` the next time: no message is skipped. So the list ends before messages that
        wait for their fan-out, and before a backfill or a restore for the consumer that is not
        complete.
        """
        consumer = policy.consumer_of(self.principal, channel, client_id)
        page = cursor.read(request)
        place = page.place if page.place is not None else _place(page, consumer)
        bound = high_watermark.of(consumer)
        ranges = [part.filter(id__lt=bound) for part in DeliveryFilter().ranges(consumer.id)]
        forward = CursorPage(page.list_name, page.filters, page.limit, "gt", place)
        answer = forward.answer(ranges, NoteSerializer.show)
        # CursorPage returns backward pages newest first; this list is oldest first.
        return Response({"items": answer["items"][::-1], "next": answer["previous"]})


def _listed(page: CursorPage, consumer: Consumer, wanted: DeliveryFilter) -> Response:
    def show(row: Delivery) -> dict[str, Any]:
        return DeliverySerializer.show_of(row, consumer)

    return Response(page.answer(wanted.ranges(consumer.id), show, wanted.condition))


def _place(page: CursorPage, consumer: Consumer) -> int:
    """Return the position of ``after=`` among the consumer's deliveries."""
    number = page.read(NOTES).get("after")
    if number is None:
        return 0
    deliveries = Delivery.objects.filter(message_id=number, consumer_id=consumer.id)
    delivery_id = deliveries.values_list("id", flat=True).first()
    # If it was deleted or never existed, start at the message's millisecond.
    return delivery_id if delivery_id is not None else ids.first_id_at(ids.created_ms(number)) - 1
