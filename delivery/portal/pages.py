"""Paginate a webhook's deliveries, newest first in index order, with a bounded scan per page."""

import heapq
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from django.db.models import Q, QuerySet

from channels_app.core import ids, names
from channels_app.database.raw import by_index
from delivery.core.lifecycle import DeliveryState
from delivery.core.outcome import Outcome
from delivery.models import Delivery
from delivery.replay.filters import HIGHEST_STATUS, LOWEST_STATUS, SKEW, id_at, of_types

LIMIT = 25
SCAN_ROWS = (500, 1500)
"""Rows of one state that the first and the second scan of a page cover if no index serves the
filter. Most filters match many rows, so the short scan usually fills the page."""

STATES: dict[str, tuple[str, Q]] = {
    "delivered": ("delivered", Q()),
    "dead": ("dead", Q()),
    "retrying": ("queued", Q(failure_count__gt=0)),
    "waiting": ("queued", Q(failure_count=0)),
    "in_flight": ("in_flight", Q()),
    "cancelled": ("cancelled", Q()),
}
"""Choices of the filter: stored state, and a further condition."""
SPANS = {"1h": 3600, "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400}
OUTCOMES = [outcome.value for outcome in Outcome]
STATUSES = [str(status) for status in range(LOWEST_STATUS, HIGHEST_STATUS + 1)]
FILTERS = ("state", "outcome", "status", "since", "event_type")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter from the URL; unknown values are ignored."""

    state: str = ""
    outcome: str = ""
    status: str = ""
    since: str = ""
    event_type: str = ""

    @classmethod
    def read(cls, query: Mapping[str, str], *, state: str = "") -> "Wanted":
        """Read the filter of a request; ``state`` overrides its own."""
        event_type = query.get("event_type", "").strip()
        return cls(
            state=state or _known(query.get("state", ""), STATES),
            outcome=_known(query.get("outcome", ""), OUTCOMES),
            status=_known(query.get("status", "").strip(), STATUSES),
            since=_known(query.get("since", ""), SPANS),
            event_type="" if names.validate_pattern(event_type) else event_type,
        )

    @property
    def states(self) -> list[str]:
        """Stored states."""
        return [STATES[self.state][0]] if self.state else [state.value for state in DeliveryState]

    def begin(self, now: datetime) -> datetime | None:
        """The earliest time of acceptance."""
        return now - timedelta(seconds=SPANS[self.since]) if self.since else None

    def condition(self, now: datetime) -> Q:
        """The condition besides the stored state."""
        wanted = STATES[self.state][1] if self.state else Q()
        if self.outcome:
            wanted &= Q(outcome=self.outcome)
        if self.status:
            wanted &= Q(status_code=int(self.status))
        if self.event_type:
            wanted &= of_types([self.event_type])
        if begin := self.begin(now):
            wanted &= Q(accepted_at__gte=begin)
        return wanted

    def query(self) -> dict[str, str]:
        """The query parameters, without empty ones."""
        return {name: value for name in FILTERS if (value := getattr(self, name))}


@dataclass(frozen=True, slots=True)
class Found:
    """One page."""

    rows: list[Delivery]
    older: str = ""
    """Public id below which the next page begins; '' at the end."""
    newer: str = ""
    """Public id above which the previous page ends; '' at the beginning."""
    is_partial: bool = False
    """The scan ended before the list did: there may be more rows although the page is not full."""


def find(
    consumer_id: int,
    wanted: Wanted,
    now: datetime,
    *,
    before: str = "",
    after: str = "",
    limit: int = LIMIT,
) -> Found:
    """Return the page below ``before`` or above ``after``, public ids; without them the newest."""
    place = ids.from_public(ids.DELIVERY, before or after)
    upwards = bool(after) and place is not None
    condition = wanted.condition(now)
    begin = wanted.begin(now)
    floor = id_at(begin - SKEW) if begin else 0
    mine = by_index(Delivery.objects.filter(consumer_id=consumer_id), "delivery_list")
    ranges = [mine.filter(state=state, id__gte=floor) for state in wanted.states]
    rows, edge = _read(ranges, condition, place, upwards, limit)
    more = len(rows) > limit
    if upwards and not more and edge is None:
        # No newer page is left: show the newest page, which is full.
        return find(consumer_id, wanted, now, limit=limit)
    rows = rows[:limit]
    onward = edge if not more else None
    if upwards:
        rows.reverse()
        lowest = rows[-1].id if rows else place
        return Found(rows, _public(lowest), _public(onward or rows[0].id), onward is not None)
    older = rows[-1].id if more else onward
    newer = (rows[0].id if rows else place) if place is not None else None
    return Found(rows, _public(older), _public(newer), onward is not None)


def _read(
    ranges: Sequence[QuerySet[Delivery]], condition: Q, place: int | None, upwards: bool, limit: int
) -> tuple[list[Delivery], int | None]:
    """Return up to ``limit + 1`` rows, and the end of the scan if the list goes on."""
    found: list[Delivery] = []
    edge = None
    for scan in SCAN_ROWS:
        parts = [_from(part, place, upwards) for part in ranges]
        edge = _edge(parts, upwards, scan) if condition else None
        bound = Q()
        if edge is not None:
            bound = Q(id__lte=edge) if upwards else Q(id__gte=edge)
        left = limit + 1 - len(found)
        lists = [part.filter(condition & bound)[:left] for part in parts]
        found += islice(heapq.merge(*lists, key=lambda row: row.id, reverse=not upwards), left)
        if edge is None or len(found) > limit:
            break
        place = edge
    return found, edge


def _from(part: QuerySet[Delivery], place: int | None, upwards: bool) -> QuerySet[Delivery]:
    if place is not None:
        part = part.filter(id__gt=place) if upwards else part.filter(id__lt=place)
    return part.order_by("id" if upwards else "-id")


def _edge(parts: Sequence[QuerySet[Delivery]], upwards: bool, scan: int) -> int | None:
    edges: list[int] = [
        edge for part in parts for edge in part.values_list("id", flat=True)[scan : scan + 1]
    ]
    if not edges:
        return None
    return min(edges) if upwards else max(edges)


def _public(number: int | None) -> str:
    return "" if number is None else ids.to_public(ids.DELIVERY, number)


def _known(value: str, choices: Container[object]) -> str:
    return value if value in choices else ""
