"""Parse a replay's filter strictly, store it canonically and build its conditions."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from django.db.models import Q

from channels_app.core import fields, ids, names, times
from channels_app.core.errors import FieldError, Invalid
from channels_app.core.fields import Field, Reader
from delivery.core.lifecycle import FINISHED
from delivery.core.outcome import Outcome

MAX_EVENT_TYPES = 100
MAX_STATUS_CODES = 100
LOWEST_STATUS, HIGHEST_STATUS = 100, 999
"""The status codes that a response can have, known or not."""
MAX_IDS = 1000
SKEW = timedelta(minutes=5)
"""Keys contain the clock of the process that created them, which may differ this much from the
database's. With a larger difference consumers would reject the signed timestamps."""
LARGEST_ID = (1 << 63) - 1
EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)

Kind = Literal["finished", "missing"]


@dataclass(frozen=True, slots=True)
class ReplayFilter:
    """Which deliveries to replay; empty fields do not restrict."""

    kind: Kind = "finished"
    """``missing`` selects messages of which the consumer has no delivery."""
    channel: str = ""
    consumer: str = ""
    """Its client id, unique in the channel."""
    states: tuple[str, ...] = ("dead",)
    outcomes: tuple[str, ...] = ()
    """Outcomes of the last attempt."""
    status_codes: tuple[int, ...] = ()
    """Status codes of the last response."""
    event_types: tuple[str, ...] = ()
    """Names and patterns as in consumers' filters (channels_app/core/names.py)."""
    accepted_from: datetime | None = None
    """Inclusive."""
    accepted_to: datetime | None = None
    """Exclusive."""
    ids: tuple[int, ...] = ()
    """Delivery ids in ascending order."""

    @property
    def is_plain(self) -> bool:
        """Whether only consumer and state decide."""
        return not (
            self.outcomes
            or self.status_codes
            or self.event_types
            or self.accepted_from
            or self.accepted_to
            or self.ids
        )

    @property
    def first_id(self) -> int:
        """Return a key below every row accepted in the range."""
        return id_at(self.accepted_from - SKEW) if self.accepted_from else 0

    def within(self, channel: str, consumer: str) -> "ReplayFilter":
        """Return the same filter for one consumer."""
        return replace(self, channel=channel, consumer=consumer)

    def condition(self, now: datetime) -> Q:
        """Return the condition for a delivery, besides its consumer and state.

        Excludes deliveries of expired messages, which would be cancelled instead of sent.
        """
        wanted = self._common(now)
        if self.outcomes:
            wanted &= Q(outcome__in=self.outcomes)
        if self.status_codes:
            wanted &= Q(status_code__in=self.status_codes)
        if self.ids:
            wanted &= Q(id__in=self.ids)
        return wanted

    def message_condition(self, consumer_event_types: Collection[str], now: datetime) -> Q:
        """Return the condition for a message to send to a consumer that registered later."""
        # A message that is not fanned out yet will reach the consumer anyway.
        return self._common(now) & Q(state="dispatched") & of_types(consumer_event_types)

    def _common(self, now: datetime) -> Q:
        wanted = (Q(expires_at=None) | Q(expires_at__gt=now)) & of_types(self.event_types)
        if self.accepted_from:
            wanted &= Q(accepted_at__gte=self.accepted_from)
        if self.accepted_to:
            wanted &= Q(accepted_at__lt=self.accepted_to)
        return wanted

    def to_json(self) -> dict[str, Any]:
        """Return the canonical form that is stored, returned and audited. `parse` reads it."""
        missing = self.kind == "missing"
        form = {
            "channel": self.channel,
            "consumer": self.consumer,
            "states": [] if missing else list(self.states),
            "outcomes": list(self.outcomes),
            "status_codes": list(self.status_codes),
            "event_types": list(self.event_types),
            "from": self.accepted_from and self.accepted_from.isoformat(),
            "to": self.accepted_to and self.accepted_to.isoformat(),
            "ids": [ids.to_public(ids.DELIVERY, number) for number in self.ids],
        }
        return {name: value for name, value in form.items() if value}


def parse(
    data: object, *, names: Collection[str] = (), at: str = "", kind: Kind = "finished"
) -> ReplayFilter:
    """Parse a filter from JSON.

    ``at`` is the path of ``data`` in the request, for the error's field. ``names`` restricts the
    fields allowed. Raises Invalid with every error: a field that is unknown, of the wrong type, too
    long, empty, or without a known value.
    """
    known = {name: field for name, field in FIELDS.items() if name in (names or FIELDS)}
    try:
        values = fields.clean(known, data, partial=True)
        wanted = ReplayFilter(
            kind=kind,
            **{_ATTRIBUTES.get(name, name): value for name, value in values.items() if value},
        )
        _check(wanted)
    except Invalid as bad:
        raise Invalid.of([_placed(fault, at) for fault in bad.faults]) from None
    return wanted


def store(wanted: ReplayFilter) -> dict[str, Any]:
    """Return the form for a Replay row."""
    return {"kind": wanted.kind, **wanted.to_json()}


def load(form: Mapping[str, Any]) -> ReplayFilter:
    """Return the filter of a Replay row. Raises Invalid for one of another version."""
    return parse(shown(form), kind="missing" if form.get("kind") == "missing" else "finished")


def shown(form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored form as in the request."""
    return {name: value for name, value in form.items() if name != "kind"}


def of_types(patterns: Iterable[str]) -> Q:
    """Return the condition for rows whose event type matches; without ``patterns`` all match.

    The result is the same as that of core.names.matches.
    """
    wanted = Q()
    for pattern in patterns:
        if pattern == names.EVERYTHING:
            return Q()
        if pattern.endswith(".*"):
            # A range instead of LIKE, which ignores case on SQLite. "/" is the character after ".".
            below = pattern[:-1]
            wanted |= Q(event_type__gte=below, event_type__lt=f"{below[:-1]}/")
        else:
            wanted |= Q(event_type=pattern)
    return wanted


def id_at(instant: datetime) -> int:
    """Return the smallest key created at a time, limited to the valid range."""
    return min(ids.first_id_at(int(instant.timestamp() * 1000)), LARGEST_ID)


def _check(wanted: ReplayFilter) -> None:
    begins, ends = wanted.accepted_from, wanted.accepted_to
    if begins and ends and begins >= ends:
        raise Invalid.of([FieldError("to", "The range ends before it begins.")])
    if wanted.consumer and not wanted.channel:
        raise Invalid.of([FieldError("channel", "Name the consumer's channel as well.")])


def _placed(fault: FieldError, at: str) -> FieldError:
    # An unknown field's name is the caller's own text, and may be invalid Unicode.
    name = fault.field.encode("ascii", "backslashreplace").decode()
    return FieldError(f"{at}.{name}".strip("."), fault.detail)


def instant(value: object) -> datetime:
    """Parse a time that every database can store and every key can express. Raises ValueError."""
    found = times.instant(value)
    if not EARLIEST <= found < LATEST:
        raise ValueError("Write an instant between the years 2000 and 9000.")
    return found


def _some(read: Reader, most: int) -> Reader:
    """Read several values in order. An empty list is invalid: it might mean all or nothing."""

    def read_some(value: object) -> tuple[Any, ...]:
        found = fields.listed(read, most)(value)
        if not found:
            raise ValueError("Name at least one, or leave the field out.")
        return tuple(sorted(found))

    return fields.nullable(read_some)


def _delivery_id(value: object) -> int:
    number = ids.from_public(ids.DELIVERY, value) if isinstance(value, str) else None
    if number is None:
        raise ValueError("Send the id of a delivery, like dlv_0cz9k3v8m0001.")
    return number


def _finished(value: object) -> str:
    # As stored, or as the API displays it ("Dead").
    if isinstance(value, str) and value.istitle():
        value = value.lower()
    name: str = fields.choice(*_FINISHED)(value)
    return name


_FINISHED = sorted(state.value for state in FINISHED)
_OUTCOMES = [outcome.value for outcome in Outcome]
_EVENT_TYPE = fields.text(200, check=names.validate_pattern)

FIELDS: dict[str, Field] = {
    "channel": Field(fields.nullable(fields.slug)),
    "consumer": Field(fields.nullable(fields.slug)),
    "states": Field(_some(_finished, len(_FINISHED))),
    "outcomes": Field(_some(fields.choice(*_OUTCOMES), len(_OUTCOMES))),
    "status_codes": Field(_some(fields.whole(LOWEST_STATUS, HIGHEST_STATUS), MAX_STATUS_CODES)),
    "event_types": Field(_some(_EVENT_TYPE, MAX_EVENT_TYPES)),
    "from": Field(fields.nullable(instant)),
    "to": Field(fields.nullable(instant)),
    "ids": Field(_some(_delivery_id, MAX_IDS)),
}
"""The fields of a filter; null is the same as absent."""
BACKFILL_FIELDS = ("event_types", "from", "to")
_ATTRIBUTES = {"from": "accepted_from", "to": "accepted_to"}
