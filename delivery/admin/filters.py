"""Filter the list of deliveries by index.

The filters themselves only keep what was chosen.
"""

from dataclasses import dataclass, field
from typing import Any, Self

from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.contrib.filters.admin import TextFilter

from channels_app.admin.changelist import IndexOrdered
from channels_app.admin.choices import DropdownFilter, Since, first_id
from channels_app.models import Channel, Consumer
from channels_app.rules import ids
from delivery.admin.newest import MAX_ROWS, Ended, newest
from delivery.models import Delivery
from delivery.rules.lifecycle import DeliveryState
from delivery.rules.outcome import Outcome
from delivery.steps.replay import HIGHEST_STATUS

Rows = QuerySet[Delivery]


class _Held(DropdownFilter):
    """A filter that only keeps its value; Chosen applies it."""

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        """Return the rows unchanged."""
        return queryset


class StateFilter(_Held):
    """Filter by state."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """All stored states."""
        return [
            (state.value, state.value.replace("_", " ").capitalize()) for state in DeliveryState
        ]


class ChannelFilter(_Held):
    """Filter by the consumers of one channel."""

    title = "channel"
    parameter_name = "channel"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """All channels."""
        return [
            (str(number), slug)
            for number, slug in Channel.objects.order_by("slug").values_list("id", "slug")
        ]


class ConsumerFilter(_Held):
    """Filter by one consumer, listed within the chosen channel."""

    title = "consumer"
    parameter_name = "consumer"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """All consumers. Retired ones are included, because their history stays."""
        rows = Consumer.objects.order_by("channel__slug", "client_id")
        channel = request.GET.get("channel", "")
        if channel.isdecimal():
            rows = rows.filter(channel_id=channel)
        names = rows.values_list("id", "channel__slug", "client_id")
        return [(str(number), f"{slug} / {client_id}") for number, slug, client_id in names]


class SinceFilter(_Held):
    """Filter by recent creation."""

    title = "time"
    parameter_name = "since"
    lookups = Since.lookups


class OutcomeFilter(_Held):
    """Filter by the last attempt's outcome, without an index: scans the other filters' rows."""

    title = f"outcome (of the newest {MAX_ROWS:,})"
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """All outcomes."""
        return [(outcome.value, outcome.value.replace("_", " ")) for outcome in Outcome]


class StatusFilter(TextFilter):
    """Filter by the last attempt's status code, by scanning as for the outcome."""

    title = f"status code (of the newest {MAX_ROWS:,})"
    parameter_name = "status"

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        """Return the rows unchanged; Chosen applies the filter."""
        return queryset


FILTERS = (StateFilter, ChannelFilter, ConsumerFilter, SinceFilter, OutcomeFilter, StatusFilter)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The filters and the search of a request."""

    states: tuple[str, ...] | None = None
    consumer_ids: tuple[int, ...] | None = None
    since: int = 0
    ended: Ended = field(default_factory=dict)

    @classmethod
    def of(cls, request: HttpRequest, term: str) -> Self:
        """Read the filters of the URL, and a client id from the search field."""
        state = request.GET.get("state", "")
        return cls(
            states=(state,) if state in list(DeliveryState) else None,
            consumer_ids=_consumers(request, term),
            since=first_id(request.GET.get("since")),
            ended=_ended(request),
        )

    def keys(self, most: int) -> list[int] | None:
        """Return up to ``most`` keys, newest first; None when the table's own order serves."""
        if self.states is None and self.consumer_ids is None and not self.ended:
            return None
        return newest(self.consumer_ids, self.states, since=self.since, ended=self.ended, most=most)


def _ended(request: HttpRequest) -> dict[str, str | int]:
    outcome, status = request.GET.get("outcome", ""), request.GET.get("status", "").strip()
    found: dict[str, str | int] = {"outcome": outcome} if outcome in list(Outcome) else {}
    if status.isascii() and status.isdecimal() and len(status) == len(str(HIGHEST_STATUS)):
        found["status_code"] = int(status)
    return found


class Deliveries(IndexOrdered):
    """The list of deliveries, found by an id or by filters, each with its index."""

    is_cut = False
    """Whether only this page was read, rather than a list that contains the page."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Rows:
        """Return the rows of the filters and the search.

        Reads only the keys of this page. For an action it returns up to MAX_ROWS rows, since
        selected ones may have changed state meanwhile.
        """
        rows: Rows = super().get_queryset(request, *args, **kwargs)
        term = self.query.strip().lower()
        named = _by_id(rows, term)
        if named is not None:
            return named
        chosen = Chosen.of(request, term)
        is_shown = request.method == "GET"
        first = max(0, self.page_num - 1) * self.list_per_page if is_shown else 0
        keys = chosen.keys(min(MAX_ROWS, first + self.list_per_page) if is_shown else MAX_ROWS)
        if keys is None:
            return rows.filter(pk__gte=chosen.since) if chosen.since else rows
        self.is_cut = is_shown
        return rows.filter(pk__in=keys[first:])

    def get_results(self, request: HttpRequest) -> None:
        """Skip no rows when the query returns only this page."""
        super().get_results(request)
        if self.is_cut:
            self.result_list = self.queryset[: self.list_per_page]


def _by_id(rows: Rows, term: str) -> Rows | None:
    """Return the delivery of an id, or the deliveries of a message's id; None for other text."""
    delivery, message = ids.from_public(ids.DELIVERY, term), ids.message_number(term)
    if delivery is not None:
        return rows.filter(pk=delivery)
    return rows.filter(message_id=message) if message is not None else None


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
