"""Lists, newest first, page by page: an opaque signed cursor holds the place and the filters."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from django.core.signing import BadSignature, Signer
from django.db.models import Model, QuerySet
from rest_framework.request import Request

from channels_app.errors import Invalid

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
MAX_FILTER_LENGTH = 500
_OLDER, _OLDER_OR_SAME, _NEWER = "lt", "lte", "gt"

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class Page:
    """Where a caller stands in a list, and what the list is filtered by."""

    list_name: str
    """Cursors of one list do not open another."""
    filters: Mapping[str, str]
    """The filters that the caller gave, or gave when the list was begun."""
    limit: int
    lookup: str = _OLDER
    place: Any = field(default=None)
    """The key next to which to go on; None at the beginning."""

    def answer(
        self,
        slices: Sequence[QuerySet[M]],
        show: Callable[[M], Mapping[str, Any]],
        *,
        key: str = "id",
    ) -> dict[str, Any]:
        """The page's ``items``, with cursors ``next`` (older) and ``previous`` (newer) or null.

        ``slices`` are disjoint querysets, each served in the order of ``key`` by an index; they
        are merged here, because a database would sort them all to read one page.
        """
        found = self._read(slices, key)
        more = len(found) > self.limit
        rows = found[: self.limit]
        backwards = self.lookup == _NEWER
        if backwards:
            rows.reverse()
        older = more if not backwards else True
        newer = more if backwards else self.place is not None
        if not rows:
            # The way back is open: from behind the end to the page that ended there.
            return {"items": [], "next": self._back(), "previous": None}
        return {
            "items": [show(row) for row in rows],
            "next": self.cursor(_OLDER, getattr(rows[-1], key)) if older else None,
            "previous": self.cursor(_NEWER, getattr(rows[0], key)) if newer else None,
        }

    def _read(self, slices: Sequence[QuerySet[M]], key: str) -> list[M]:
        newest_first = self.lookup != _NEWER
        where = {} if self.place is None else {f"{key}__{self.lookup}": self.place}
        order = f"-{key}" if newest_first else key
        parts = [part.filter(**where).order_by(order)[: self.limit + 1] for part in slices]
        if len(parts) == 1:
            return list(parts[0])
        merged = heapq.merge(*parts, key=lambda row: getattr(row, key), reverse=newest_first)
        return list(islice(merged, self.limit + 1))

    def _back(self) -> str | None:
        return self.cursor(_OLDER_OR_SAME, self.place) if self.lookup == _NEWER else None

    def cursor(self, lookup: str, place: Any) -> str:
        """Where to go on, as the caller keeps it."""
        return _signer(self.list_name).sign_object([lookup, place, self.limit, dict(self.filters)])


def read(request: Request) -> Page:
    """The page that a request asks for with ``limit`` and ``cursor``; all else filters the list.

    What its operation does not know has been refused (options.py). A cursor brings its own filters
    along; others beside it are refused. Raises Invalid.
    """
    given = {name: request.query_params[name] for name in request.query_params}
    limit, cursor = given.pop("limit", None), given.pop("cursor", None)
    for name, value in given.items():
        if len(value) > MAX_FILTER_LENGTH or "\x00" in value:
            raise _refuse(name, f"At most {MAX_FILTER_LENGTH} characters, and no NUL.")
    if cursor is None:
        return Page(request.path_info, given, _limit(limit, DEFAULT_LIMIT))
    return _resume(request.path_info, cursor, limit, given)


def _resume(name: str, cursor: str, limit: str | None, given: dict[str, str]) -> Page:
    try:
        lookup, place, kept_limit, filters = _signer(name).unsign_object(cursor)
    except (BadSignature, ValueError):
        raise _refuse(
            "cursor", "The cursor does not belong to this list; start without one."
        ) from None
    if given and given != filters:
        raise _refuse("cursor", "The cursor keeps its own filters; leave them out or repeat them.")
    return Page(name, filters, _limit(limit, kept_limit), lookup, place)


def _limit(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MAX_LIMIT):
        raise _refuse("limit", f"A whole number from 1 to {MAX_LIMIT} is needed.")
    return int(text)


def _refuse(field: str, detail: str) -> Invalid:
    return Invalid("invalid_parameter", detail, field=field)


def _signer(name: str) -> Signer:
    return Signer(salt=f"cursor:{name}")
