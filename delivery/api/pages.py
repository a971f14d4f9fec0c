"""Paginate filtered lists with a bounded cost: each response scans a limited range of an index."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet

from channels_app.api.cursor import Page
from channels_app.core import names as event_filters
from channels_app.core.errors import Invalid
from delivery.core.lifecycle import DeliveryState
from delivery.core.outcome import Outcome
from delivery.replay.filters import instant, of_types

SCAN_ROWS = (500, 1500)
"""Rows of one range that the first and the second scan of a response cover. The end of a scan is
read from the index alone. Most filters match many rows, so the short scan usually fills the
page."""

M = TypeVar("M", bound=Model)
Show = Callable[[Any], Mapping[str, Any]]

SHOWN_STATES: dict[str, tuple[str, Q]] = {
    **{state.value: (state.value, Q()) for state in DeliveryState},
    "Queued": ("queued", Q(failure_count=0, attempt_count=0)),
    "Retry-Delivery": ("queued", Q(failure_count__gt=0) | Q(attempt_count__gt=0)),
    "In-flight": ("in_flight", Q(failure_count=0, attempt_count__lte=1)),
    "Retry-In-flight": ("in_flight", Q(failure_count__gt=0) | Q(attempt_count__gt=1)),
    "Awaiting-Ack": ("awaiting_ack", Q()),
    "Delivered": ("delivered", Q()),
    "Dead": ("dead", Q()),
    "Cancelled": ("cancelled", Q()),
}
"""Values of ``state=``: a state as stored, or exactly as shown (lifecycle.shown_state)."""


class Deep(Page):
    """A page of a list with a filter that no index serves.

    It may have fewer rows than requested, or none, before the list ends; then it has a cursor.
    """

    __slots__ = ()

    def answer_filtered(
        self, ranges: Sequence[QuerySet[M]], wanted: Q, show: Show
    ) -> dict[str, Any]:
        """Return the page, like Page.answer. An index serves ``ranges`` in the order of ``id``."""
        found: list[Any] = []
        lookup, place, edge = self.lookup, self.place, None
        for scan in SCAN_ROWS:
            parts = [self._from(part, lookup, place) for part in ranges]
            edge = self._edge(parts, scan)
            found += self._matching(parts, wanted, edge, self.limit + 1 - len(found))
            if edge is None or len(found) > self.limit:
                break
            lookup, place = "gt" if self._ascends else "lt", edge
        rows = found[: self.limit]
        onward = rows[-1].id if len(found) > self.limit else edge
        return self._page(rows, onward, show)

    def _page(self, rows: list[Any], onward: int | None, show: Show) -> dict[str, Any]:
        if self._ascends:
            rows.reverse()
            back = self.cursor("lt", rows[-1].id) if rows else self.cursor("lte", self.place)
            ahead = None if onward is None else self.cursor("gt", onward)
            return {"items": [show(row) for row in rows], "next": back, "previous": ahead}
        newest = rows[0].id if rows else self.place
        return {
            "items": [show(row) for row in rows],
            "next": None if onward is None else self.cursor("lt", onward),
            "previous": None if self.place is None else self.cursor("gt", newest),
        }

    @property
    def _ascends(self) -> bool:
        return self.lookup == "gt"

    def _from(self, part: QuerySet[M], lookup: str, place: Any) -> QuerySet[M]:
        where = {} if place is None else {f"id__{lookup}": place}
        return part.filter(**where).order_by("id" if self._ascends else "-id")

    def _edge(self, parts: Sequence[QuerySet[M]], scan: int) -> int | None:
        """Return the last key of this scan; None when it reaches the end of the list."""
        edges: list[int] = [
            edge for part in parts for edge in part.values_list("id", flat=True)[scan : scan + 1]
        ]
        if not edges:
            return None
        return min(edges) if self._ascends else max(edges)

    def _matching(
        self, parts: Sequence[QuerySet[M]], wanted: Q, edge: int | None, most: int
    ) -> list[M]:
        if edge is not None:
            wanted &= Q(id__lte=edge) if self._ascends else Q(id__gte=edge)
        lists = [part.filter(wanted)[:most] for part in parts]
        merged = heapq.merge(*lists, key=lambda row: row.pk, reverse=not self._ascends)
        return list(islice(merged, most))


def answer(page: Page, ranges: Sequence[QuerySet[M]], wanted: Q, show: Show) -> dict[str, Any]:
    """Return the page's rows from disjoint index ranges, filtered by ``wanted``."""
    if not wanted:
        return page.answer(ranges, show)
    deep = Deep(**{field.name: getattr(page, field.name) for field in fields(page)})
    return deep.answer_filtered(ranges, wanted, show)


def states_of(page: Page) -> tuple[list[str], Q]:
    """Return the stored states and the condition of ``state=``. Raises Invalid.

    Without the parameter, these are all states.
    """
    if "state" not in page.filters:
        return [state.value for state in DeliveryState], Q()
    stored, wanted = choose(page, "state", SHOWN_STATES)
    return [stored], wanted


def choose(page: Page, name: str, choices: Mapping[str, Any]) -> Any:
    """Return the value for a filter with fixed choices. Raises Invalid."""
    if page.filters[name] not in choices:
        raise refuse(name, f"Choose from {', '.join(choices)}.")
    return choices[page.filters[name]]


def common(page: Page) -> Q:
    """Return the condition of ``outcome``, ``event_type``, ``from`` and ``to``. Raises Invalid."""
    wanted = Q()
    if "outcome" in page.filters:
        outcomes = {outcome.value: outcome.value for outcome in Outcome}
        wanted &= Q(outcome=choose(page, "outcome", outcomes))
    if "event_type" in page.filters:
        pattern = page.filters["event_type"]
        if fault := event_filters.validate_pattern(pattern):
            raise refuse("event_type", fault)
        wanted &= of_types([pattern])
    begins, ends = instant_of(page, "from"), instant_of(page, "to")
    if begins:
        wanted &= Q(accepted_at__gte=begins)
    if ends:
        wanted &= Q(accepted_at__lt=ends)
    return wanted


def instant_of(page: Page, name: str) -> datetime | None:
    """Parse a filter that is an instant. Raises Invalid."""
    if name not in page.filters:
        return None
    try:
        return instant(page.filters[name])
    except ValueError as error:
        raise refuse(name, str(error)) from None


def refuse(name: str, detail: str) -> Invalid:
    """Return the error for an invalid query parameter."""
    return Invalid("invalid_parameter", detail, field=name)
