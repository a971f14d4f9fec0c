"""List, read, replay and cancel deliveries of a consumer, and send a test delivery."""

import os
from datetime import timedelta
from typing import Any, ClassVar

from django.db.models import Q, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api import cursor, etags
from channels_app.api.base import ApiView, json_object
from channels_app.api.cursor import Page
from channels_app.core import ids, times
from channels_app.core.errors import Conflict, Invalid
from channels_app.database import clock
from channels_app.database.raw import by_index
from channels_app.models import Consumer
from channels_app.registry import viewing
from channels_app.registry.cache import config_cache
from delivery import replay
from delivery.api import bodies, documents, pages, policy, shapes
from delivery.core.lifecycle import DeliveryState
from delivery.models import Attempt, Delivery
from delivery.pump import wakeups
from delivery.queue import cancel
from delivery.replay.filters import SKEW, id_at
from delivery.transport.test_delivery import probe


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
        consumer = policy.consumer_of(self.caller, channel, client_id)
        if json_object(request, optional=True):
            raise Invalid("invalid_fields", "A test takes no fields: send {} or an empty body.")
        view = config_cache.consumers({consumer.id}).get(consumer.id)
        if view is None:
            raise Conflict(
                "consumer_retired", "The consumer is retired: the broker sends it nothing."
            )
        return Response(shapes.probed(probe(view, team_id=self.caller.tenant.team_id)))


MAX_ATTEMPTS = 200
"""Maximum attempts shown with one delivery, the newest ones."""
SETTLED_S = 2.0
"""Newer rows may still be followed by lower ids, because a longer transaction commits later."""


class DeliveryView(ApiView):
    """One delivery with its attempts."""

    scopes: ClassVar = {"GET": ("read",)}

    @documents.get_delivery
    def get(self, request: Request, delivery_id: str) -> Response:
        """Return the delivery with its newest 200 attempts."""
        row = policy.delivery_of(self.caller, delivery_id)
        known = Attempt.objects.filter(delivery_id=row.id).order_by("-number")
        newest = list(known[:MAX_ATTEMPTS])
        operator = self.caller.tenant.everything
        may_open = policy.may_open(self.caller, row.channel)
        if may_open and any(one.answer_headers or one.answer_excerpt for one in newest):
            team_id = self.caller.tenant.team_id
            viewing.note(self.caller.actor, f"delivery:{row}", "answers", team_id=team_id)
        attempts = [shapes.attempt(one, for_operator=operator, may_open=may_open) for one in newest]
        body = shapes.delivery(row, row.channel.slug, row.consumer.client_id)
        body["roundtrip"] = shapes.roundtrip(row.roundtrip(newest))
        return etags.fresh(request, body | {"attempts": attempts[::-1]}, row.version)


class DeliveryReplayView(ApiView):
    """Replay one delivery."""

    scopes: ClassVar = {"POST": ("replay",)}

    @documents.replay_delivery
    def post(self, request: Request, delivery_id: str) -> Response:
        """Queue a finished delivery again, due now and with a fresh budget of attempts.

        Its history is kept. Refused (409) while it is unfinished, when the message has expired, and
        if the consumer is retired.
        """
        row = policy.delivery_of(self.caller, delivery_id)
        reason = bodies.read(request, bodies.REPAIR, optional=True).get("reason", "")
        principal = policy.principal_of(self.caller, reason)
        after = replay.replay_one(row.id, principal, now=clock.now(), slot=os.getpid())
        wakeups.notify_pumps([after.consumer_id])
        body = shapes.delivery(after, row.channel.slug, row.consumer.client_id)
        return etags.tagged(body, after.version, status=202, location=body["url"])


class DeliveryCancelView(ApiView):
    """Cancel one delivery."""

    scopes: ClassVar = {"POST": ("replay",)}

    @documents.cancel_delivery
    def post(self, request: Request, delivery_id: str) -> Response:
        """Cancel a queued delivery. Refused (409) if it is not queued."""
        row = policy.delivery_of(self.caller, delivery_id)
        reason = bodies.read(request, bodies.REPAIR, optional=True).get("reason", "")
        principal = policy.principal_of(self.caller, reason)
        after = cancel.cancel_one(row.id, principal, now=clock.now(), slot=os.getpid())
        body = shapes.delivery(after, row.channel.slug, row.consumer.client_id)
        return etags.tagged(body, after.version)


class ConsumerDeliveriesView(ApiView):
    """A consumer's deliveries."""

    scopes: ClassVar = {"GET": ("read",)}

    @documents.list_deliveries
    def get(self, request: Request, channel: str, client_id: str) -> Response:
        """List the consumer's deliveries, newest first.

        With a filter other than `state` a page may have fewer items than `limit`, even none,
        although `next` is set: each request reads a limited number of rows.
        """
        consumer = policy.consumer_of(self.caller, channel, client_id)
        page = cursor.read(request)
        return Response(_listed(page, consumer, *pages.states_of(page)))


class DeadLettersView(ApiView):
    """A consumer's dead letters."""

    scopes: ClassVar = {"GET": ("read",)}

    @documents.list_dead_letters
    def get(self, request: Request, channel: str, client_id: str) -> Response:
        """List the consumer's dead deliveries, newest first.

        With a filter a page may have fewer items than `limit`, even none, although `next` is set.
        """
        consumer = policy.consumer_of(self.caller, channel, client_id)
        page = cursor.read(request)
        return Response(_listed(page, consumer, [DeliveryState.DEAD.value], Q()))


class ConsumerMessagesView(ApiView):
    """Messages sent to a consumer, oldest first, for comparison with what it received."""

    scopes: ClassVar = {"GET": ("read", "receive")}

    @documents.compare_notes
    def get(self, request: Request, channel: str, client_id: str) -> Response:
        """List the messages sent to the consumer, oldest first, up to two seconds ago.

        Compare them with what arrived, and replay missing ones. Keep the last `message_id` and send
        it as `after` the next time.
        """
        consumer = policy.consumer_of(self.caller, channel, client_id)
        page = cursor.read(request)
        place = page.place if page.place is not None else _place(page, consumer)
        settled = id_at(clock.now() - timedelta(seconds=SETTLED_S))
        ranges = [
            part.filter(id__lt=settled)
            for part in _ranges(consumer, [state.value for state in DeliveryState])
        ]
        forward = Page(page.list_name, page.filters, page.limit, "gt", place)
        found = forward.answer(ranges, lambda row: _note(row))
        # Page returns backward pages newest first; this list is oldest first.
        return Response({"items": found["items"][::-1], "next": found["previous"]})


def _listed(page: Page, consumer: Consumer, states: list[str], wanted: Q) -> dict[str, Any]:
    channel, client_id = consumer.channel.slug, consumer.client_id
    ranges = _ranges(consumer, states)
    if begins := pages.instant_of(page, "from"):
        # A delivery is created after its message was accepted, with no upper limit.
        ranges = [part.filter(id__gte=id_at(begins - SKEW)) for part in ranges]
    return pages.answer(
        page,
        ranges,
        wanted & pages.common(page),
        lambda row: shapes.delivery(row, channel, client_id),
    )


def _ranges(consumer: Consumer, states: list[str]) -> list[QuerySet[Delivery]]:
    """Return one range of the index (consumer, state, id) per state."""
    rows = by_index(Delivery.objects.filter(consumer_id=consumer.id), "delivery_list")
    return [rows.filter(state=state) for state in states]


def _place(page: Page, consumer: Consumer) -> int:
    """Return the position of ``after=`` among the consumer's deliveries."""
    text = page.filters.get("after")
    if text is None:
        return 0
    number = ids.from_public(ids.MESSAGE, text)
    if number is None:
        raise pages.refuse("after", "Send the id of a message, like msg_0cz9k3v8m0001.")
    known = Delivery.objects.filter(message_id=number, consumer_id=consumer.id)
    found = known.values_list("id", flat=True).first()
    # If it was deleted or never existed, start at the message's millisecond.
    return found if found is not None else ids.first_id_at(ids.created_ms(number)) - 1


def _note(row: Delivery) -> dict[str, Any]:
    return {
        "message_id": ids.to_public(ids.MESSAGE, row.message_id),
        "delivery_id": ids.to_public(ids.DELIVERY, row.id),
        "state": shapes.state(row),
        "event_type": row.event_type,
        "accepted_at": times.text(row.accepted_at),
        "finished_at": times.text(row.finished_at) if row.finished_at else None,
    }
