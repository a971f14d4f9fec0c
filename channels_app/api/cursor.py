"""Page through lists, newest first, by an opaque signed cursor with the position and filters."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from django.core.signing import BadSignature, Signer
from django.db.models import Model, QuerySet
from rest_framework.request import Request

from channels_app.core.errors import Invalid

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
MAX_FILTER_LENGTH = 500
_OLDER, _OLDER_OR_SAME, _NEWER = "lt", "lte", "gt"

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class Page:
    """A position in a list, and the list's filters."""

    list_name: str
    """Signed into the cursor, so that it is not valid for another list."""
    filters: Mapping[str, str]
    """The filters of this request, or of the one that began the list."""
    limit: int
    lookup: str = _OLDER
    place: Any = field(default=None)
    """The key after which the page begins; None for the first page."""

    def answer(
        self,
        slices: Sequence[QuerySet[M]],
        show: Callable[[M], Mapping[str, Any]],
        *,
        key: str = "id",
    ) -> dict[str, Any]:
        """The page's ``items``, with cursors ``next`` (older) and ``previous`` (newer) or null.

        ``slices`` are disjoint querysets, each read in the order of ``key`` from an index. They are
        merged here, since a database would sort all of their rows to read one page.
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
            # Nothing is newer: `next` leads back to the page where the caller came from.
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
        """A signed cursor for a position."""
        return _signer(self.list_name).sign_object([lookup, place, self.limit, dict(self.filters)])


def read(request: Request) -> Page:
    """The page that ``limit`` and ``cursor`` of a request select; other parameters are filters.

    options.py has rejected unknown parameters. A cursor contains its filters; different ones beside
    it are rejected. Raises Invalid.
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
