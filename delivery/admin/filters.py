"""Filters of the delivery list: they only hold what was chosen; the list reads it by index."""

from dataclasses import dataclass
from typing import Any, Self

from django.contrib.admin.views.main import PAGE_VAR
from django.db.models import QuerySet
from django.http import HttpRequest

from channels_app.admin import base
from channels_app.admin.choices import DropdownFilter, Since, first_id
from channels_app.models import Channel, Consumer
from channels_app.rules import ids
from delivery.admin.newest import MOST, newest
from delivery.models import Delivery
from delivery.rules.lifecycle import DeliveryState
from delivery.rules.outcome import Outcome

Rows = QuerySet[Delivery]


class _Held(DropdownFilter):
    """A choice that Chosen carries out."""

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        """Unchanged."""
        return queryset


class StateFilter(_Held):
    """Where deliveries stand."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """The stored states."""
        return [
            (state.value, state.value.replace("_", " ").capitalize()) for state in DeliveryState
        ]


class ChannelFilter(_Held):
    """Deliveries of one channel's consumers."""

    title = "channel"
    parameter_name = "channel"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Every channel."""
        return [
            (str(number), slug)
            for number, slug in Channel.objects.order_by("slug").values_list("id", "slug")
        ]


class ConsumerFilter(_Held):
    """Deliveries of one consumer; within a channel, where one is chosen."""

    title = "consumer"
    parameter_name = "consumer"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Every consumer, retired ones too: their history stays."""
        rows = Consumer.objects.order_by("channel__slug", "client_id")
        channel = request.GET.get("channel", "")
        if channel.isdecimal():
            rows = rows.filter(channel_id=channel)
        names = rows.values_list("id", "channel__slug", "client_id")
        return [(str(number), f"{slug} / {client_id}") for number, slug, client_id in names]


class SinceFilter(_Held):
    """Deliveries made lately."""

    title = "time"
    parameter_name = "since"
    lookups = Since.lookups


class OutcomeFilter(_Held):
    """How the last attempt ended; there is no index, so it looks among what the others leave."""

    title = f"outcome (of the newest {MOST:,})"
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Every outcome."""
        return [(outcome.value, outcome.value.replace("_", " ")) for outcome in Outcome]


FILTERS = (StateFilter, ChannelFilter, ConsumerFilter, SinceFilter, OutcomeFilter)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a person is looking for."""

    states: tuple[str, ...] | None = None
    consumer_ids: tuple[int, ...] | None = None
    since: int = 0
    outcome: str = ""
    most: int = MOST
    """Rows that are to be looked at."""

    @classmethod
    def of(cls, request: HttpRequest, term: str, per_page: int) -> Self:
        """The filters in the address, and a client id in the search field."""
        state, outcome = request.GET.get("state", ""), request.GET.get("outcome", "")
        return cls(
            states=(state,) if state in list(DeliveryState) else None,
            consumer_ids=_consumers(request, term),
            since=first_id(request.GET.get("since")),
            outcome=outcome if outcome in list(Outcome) else "",
            most=MOST if outcome else _reach(request, per_page),
        )

    def apply(self, rows: Rows) -> Rows:
        """The rows, by index."""
        if self.states is None and self.consumer_ids is None:
            found = rows.filter(pk__gte=self.since) if self.since else rows
            found = base.newest(found) if self.outcome else found
        else:
            keys = newest(self.consumer_ids, self.states, since=self.since, most=self.most)
            found = rows.filter(pk__in=keys)
        return found.filter(outcome=self.outcome) if self.outcome else found


def find(request: HttpRequest, rows: Rows, term: str, per_page: int) -> Rows:
    """What an id names, else what was chosen, each by its index."""
    found = _by_id(rows, term)
    return Chosen.of(request, term, per_page).apply(rows) if found is None else found


def _by_id(rows: Rows, term: str) -> Rows | None:
    """The delivery of an id, or the deliveries of a message's id; None when it is neither."""
    delivery, message = (ids.from_public(kind, term) for kind in (ids.DELIVERY, ids.MESSAGE))
    if delivery is not None:
        return rows.filter(pk=delivery)
    return rows.filter(message_id=message) if message is not None else None


def _reach(request: HttpRequest, per_page: int) -> int:
    """Rows up to the end of the page. What was chosen for an action may have moved on since."""
    page = request.GET.get(PAGE_VAR, "1")
    if request.method != "GET" or not page.isdecimal() or len(page) > len(str(MOST)):
        return MOST
    return min(MOST, int(page) * per_page)


def _consumers(request: HttpRequest, term: str) -> tuple[int, ...] | None:
    channel, consumer = request.GET.get("channel", ""), request.GET.get("consumer", "")
    wanted: dict[str, Any] = {}
    if channel.isdecimal():
        wanted["channel_id"] = channel
    if consumer.isdecimal():
        wanted["id"] = consumer
    if term:
        wanted["client_id"] = term
    if not wanted:
        return None
    return tuple(Consumer.objects.filter(**wanted).values_list("id", flat=True))
