"""Page through lists, newest first, by an opaque signed cursor with the position and filters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.core.signing import BadSignature, Signer
from django.db.models import Model, Q, QuerySet
from rest_framework.request import Request

from channels_app.core.errors import Invalid
from channels_app.database import keyset
from channels_app.serializers.base import StrictSerializer

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
MAX_FILTER_LENGTH = 500
_OLDER, _NEWER = "lt", "gt"
_PLACES = {_OLDER: "below", _NEWER: "above"}

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class CursorPage:
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
        ranges: Sequence[QuerySet[M]],
        show: Callable[[M], Mapping[str, Any]],
        condition: Q = Q(),
    ) -> dict[str, Any]:
        """The page's ``items``, with cursors ``next`` (older) and ``previous`` (newer) or null.

        ``ranges`` and ``condition`` as for database.keyset.read.
        """
        place = {_PLACES[self.lookup]: self.place}
        page = keyset.read(ranges, self.limit, condition=condition, **place)
        return {
            "items": [show(row) for row in page.rows],
            "next": None if page.below is None else self.cursor(_OLDER, page.below),
            "previous": None if page.above is None else self.cursor(_NEWER, page.above),
        }

    def read(self, serializer: StrictSerializer) -> dict[str, Any]:
        """The checked filters. Raises Invalid."""
        return read_query(serializer, self.filters)

    def cursor(self, lookup: str, place: Any) -> str:
        """A signed cursor for a position."""
        return _signer(self.list_name).sign_object([lookup, place, self.limit, dict(self.filters)])


def read_query(serializer: StrictSerializer, given: Mapping[str, Any]) -> dict[str, Any]:
    """The checked query parameters. Raises Invalid."""
    try:
        return serializer.read(given)
    except Invalid as bad:
        first = bad.faults[0]
        raise Invalid(
            "invalid_parameter", first.detail, field=first.field, faults=bad.faults
        ) from None


def read(request: Request) -> CursorPage:
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
        return CursorPage(request.path_info, given, _limit(limit, DEFAULT_LIMIT))
    return _resume(request.path_info, cursor, limit, given)


def _resume(name: str, cursor: str, limit: str | None, given: dict[str, str]) -> CursorPage:
    try:
        lookup, place, kept_limit, filters = _signer(name).unsign_object(cursor)
        if lookup not in _PLACES:
            raise ValueError(lookup)
    except (BadSignature, ValueError):
        raise _refuse(
            "cursor", "The cursor does not belong to this list; start without one."
        ) from None
    if given and given != filters:
        raise _refuse("cursor", "The cursor keeps its own filters; leave them out or repeat them.")
    return CursorPage(name, filters, _limit(limit, kept_limit), lookup, place)


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
