"""Filter the lists of deliveries, and read their newest pages in index order.

Lists are read newest first. No index serves an ORDER BY id over several consumers or states: on ten
million rows the database would sort or scan them. So this module reads one range for each
(consumer, state) that the counters show as not empty, and merges them: a few rows of each, however
long the history.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.contrib.filters.admin import TextFilter

from channels_app.admin.base import IndexOrdered
from channels_app.admin.filters import DropdownFilter, Since, first_id
from channels_app.core import ids
from channels_app.database import raw
from channels_app.database.raw import dialect
from channels_app.models import Channel, Consumer
from delivery.core.lifecycle import DeliveryState
from delivery.core.outcome import Outcome
from delivery.models import Counter, Delivery
from delivery.models.counter import MADE
from delivery.serializers.filters import DeadLetterQuerySerializer

MAX_ROWS = 1000
"""Maximum rows of a filtered list."""
BUDGET = 50_000
"""Maximum rows read from all ranges together; with many ranges, fewer rows of each."""
MIN_ROWS = 100
RANGES = 200
"""Maximum terms of one UNION; SQLite allows 500."""
TERM = (
    "SELECT id FROM (SELECT id{columns} FROM {table} WHERE {pair}id >= %s "
    "ORDER BY id DESC LIMIT %s) AS t{place}{only}"
)
PAIR = "consumer_id = %s AND state = %s AND "
Pair = tuple[int, str] | tuple[()]
"""Consumer and state; empty for the whole table in the order of its key."""
Ended = Mapping[str, str | int]
"""Outcome and status code of the last attempt, by column."""
ENDED = (("outcome", "outcomes"), ("status_code", "status_codes"))
"""Columns, and their names in filters."""
QUERY = DeadLetterQuerySerializer()
Rows = QuerySet[Delivery]


def newest(
    consumer_ids: Collection[int] | None,
    states: Collection[str] | None,
    *,
    since: int = 0,
    ended: Ended | None = None,
    most: int = MAX_ROWS,
) -> list[int]:
    """Return keys of the newest rows, descending.

    None means any consumer, any state; ``since`` is a key.

    No index serves ``ended``, so it filters the newest rows of the other filters.
    """
    pairs = _pairs(consumer_ids, states)
    depth = max(MIN_ROWS, min(MAX_ROWS, BUDGET // max(1, len(pairs))))
    limit = min(most, depth)
    keys: list[int] = []
    for start in range(0, len(pairs), RANGES):
        keys += _read(
            pairs[start : start + RANGES], since, ended or {}, depth if ended else limit, limit
        )
    return sorted(keys, reverse=True)[:limit]


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
    parameter_name = "status_code"

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
        values, _ = QUERY.usable(request.GET)
        state = request.GET.get("state", "")
        return cls(
            states=(state,) if state in list(DeliveryState) else None,
            consumer_ids=_consumers(request, term),
            since=first_id(request.GET.get("since")),
            ended={column: values[source] for column, source in ENDED if source in values},
        )

    def keys(self, most: int) -> list[int] | None:
        """Return up to ``most`` keys, newest first; None when the table's own order serves."""
        if self.states is None and self.consumer_ids is None and not self.ended:
            return None
        return newest(self.consumer_ids, self.states, since=self.since, ended=self.ended, most=most)


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


def _pairs(consumer_ids: Collection[int] | None, states: Collection[str] | None) -> Sequence[Pair]:
    if consumer_ids is None and states is None:
        return [()]
    counters = Counter.objects.exclude(state=MADE)
    if consumer_ids is not None:
        counters = counters.filter(consumer_id__in=consumer_ids)
    if states is not None:
        counters = counters.filter(state__in=states)
    # A shard of a counter may be negative while the sum is not: any shard means that there was a
    # row.
    return sorted(set(counters.values_list("consumer_id", "state")))


def _read(pairs: Sequence[Pair], since: int, ended: Ended, depth: int, limit: int) -> list[int]:
    """Read ``depth`` rows of each range, and return up to ``limit`` of all."""
    union = " UNION ALL ".join(_term(pair, place, ended) for place, pair in enumerate(pairs))
    values: list[Any] = [part for pair in pairs for part in (*pair, since, depth, *ended.values())]
    # Only TERM, repeated; values are parameters.
    # S608: the ranges are our own queries.
    sql = f"SELECT id FROM ({union}) AS u ORDER BY id DESC LIMIT %s"  # noqa: S608
    return [key for (key,) in raw.read(sql, [*values, limit])]


def _term(pair: Pair, place: int, ended: Ended) -> str:
    # The primary key gives the order, but no range.
    hint = dialect.hint("delivery_list") if pair else ""
    return TERM.format(
        table=Delivery._meta.db_table + hint,
        pair=PAIR if pair else "",
        place=place,
        columns="".join(f", {column}" for column in ended),
        only=" WHERE " + " AND ".join(f"{column} = %s" for column in ended) if ended else "",
    )


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
