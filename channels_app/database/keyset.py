"""Read a page of a list by its keys, newest first, at a bounded cost.

A list consists of ranges: disjoint querysets that an index serves in the order of ``id``. They are
merged here, since a database would sort all of their rows to read one page. A condition that no
index serves reads a limited number of rows, so that a page may be short, or empty, before the list
ends.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from django.db.models import Model, Q, QuerySet

SCAN_ROWS = (500, 1500)
"""Rows of one range that the first and the second scan of a page cover. The end of a scan is read
from the index alone. Most conditions match many rows, so the short scan usually fills the page."""

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class KeysetPage(Generic[M]):
    """A page, and where its neighbours begin."""

    rows: list[M]
    below: int | None
    """The older page has the ids below this one; None at the end of the list."""
    above: int | None
    """The newer page has the ids above this one; None at the beginning of the list."""
    is_partial: bool = False
    """The scan ended before the list did: more rows may follow although the page is not full."""


def read(
    ranges: Sequence[QuerySet[M]],
    limit: int,
    *,
    below: int | None = None,
    above: int | None = None,
    condition: Q = Q(),
) -> KeysetPage[M]:
    """Return the newest rows below ``below``, the oldest above ``above``, or the newest of all."""
    ascends = above is not None
    place = above if ascends else below
    matches: list[M] = []
    for scan in SCAN_ROWS:
        parts = [_from(part, place, ascends) for part in ranges]
        edge = _edge(parts, scan, ascends) if condition else None
        matches += _matching(parts, condition, edge, limit + 1 - len(matches), ascends)
        if edge is None or len(matches) > limit:
            break
        place = edge
    rows, is_full = matches[:limit], len(matches) > limit
    onward: int | None = rows[-1].pk if is_full else edge
    is_partial = not is_full and edge is not None
    if above is not None:
        rows.reverse()
        older = rows[-1].pk if rows else above + 1
        return KeysetPage(rows, older, onward, is_partial)
    newer = None
    if below is not None:
        newer = rows[0].pk if rows else max(below - 1, 0)
    return KeysetPage(rows, onward, newer, is_partial)


def _from(part: QuerySet[M], place: int | None, ascends: bool) -> QuerySet[M]:
    if place is not None:
        part = part.filter(id__gt=place) if ascends else part.filter(id__lt=place)
    return part.order_by("id" if ascends else "-id")


def _edge(parts: Sequence[QuerySet[M]], scan: int, ascends: bool) -> int | None:
    """Return the last key of this scan; None if it reaches the end of the list."""
    edges: list[int] = [
        edge for part in parts for edge in part.values_list("id", flat=True)[scan : scan + 1]
    ]
    if not edges:
        return None
    return min(edges) if ascends else max(edges)


def _matching(
    parts: Sequence[QuerySet[M]], condition: Q, edge: int | None, most: int, ascends: bool
) -> list[M]:
    if edge is not None:
        condition &= Q(id__lte=edge) if ascends else Q(id__gte=edge)
    lists = [part.filter(condition)[:most] for part in parts]
    if len(lists) == 1:
        return list(lists[0])
    return list(islice(heapq.merge(*lists, key=lambda row: row.pk, reverse=not ascends), most))
