"""Validate the fields of a schedule: its timing, and the content of its messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from channels_app.rules import fields, misfires, names, settings, times, timetable
from channels_app.rules.fields import Described, Field, FieldError, InvalidValues

MAX_LIMIT = 1_000_000_000
ALLOW, SKIP_IF_UNDELIVERED = "allow", "skip_if_undelivered"
_INSTANT = {"type": ["string", "integer"], "description": "RFC 3339, or milliseconds since 1970."}
_TEXT = {"type": ["string", "null"]}


@dataclass(frozen=True, slots=True)
class Content:
    """A message of a schedule, parsed and validated like a published message."""

    body: bytes = field(repr=False)
    content_type: str = ""
    event_type: str = ""
    priority: int | None = None
    """None: the producer's default."""
    ordering_key: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


def _cron(value: object) -> str:
    return timetable.check_cron(fields.text(timetable.MAX_CRON_LENGTH)(value))


def _zone(value: object) -> str:
    name: str = fields.text(timetable.MAX_ZONE_LENGTH)(value)
    timetable.check_zone(name)
    return name


def _item(schema: Mapping[str, Any], text: str) -> Field:
    return Field(Described(lambda value: value, schema), help=text)


TIMING: dict[str, Field] = {
    "description": settings.description,
    "cron": Field(
        fields.nullable(
            Described(_cron, {"type": "string", "maxLength": timetable.MAX_CRON_LENGTH})
        ),
        help="minute hour day month weekday; a sixth field in front is seconds.",
    ),
    "every_ms": Field(
        fields.nullable(fields.whole(timetable.MIN_INTERVAL_MS, timetable.MAX_MS)),
        help="Instead of cron: milliseconds from one occurrence to the next.",
    ),
    "timezone": Field(
        Described(_zone, {"type": "string", "maxLength": timetable.MAX_ZONE_LENGTH}),
        default="UTC",
        help="IANA name of the time zone for cron.",
    ),
    "start_at": Field(
        fields.nullable(Described(times.instant, _INSTANT)),
        help="No occurrence before this; every_ms counts from it.",
    ),
    "end_at": Field(
        fields.nullable(Described(times.instant, _INSTANT)), help="No occurrence after this."
    ),
    "limit": Field(fields.nullable(fields.whole(1, MAX_LIMIT)), help="Total number of messages."),
    "misfire": Field(
        fields.choice(misfires.FIRE_ONCE, misfires.FIRE_ALL, misfires.SKIP),
        default=misfires.FIRE_ONCE,
        help="Which occurrences more than a minute late are published: the last, all, or none.",
    ),
    "overlap": Field(
        fields.choice(ALLOW, SKIP_IF_UNDELIVERED),
        default=ALLOW,
        help="Whether to publish while the previous message has unfinished deliveries.",
    ),
}
"""Fields for when the schedule recurs."""
CONTENT: dict[str, Field] = {
    "body": _item(_TEXT, "Text; stored as UTF-8."),
    "body_base64": _item(_TEXT | {"contentEncoding": "base64"}, "Instead of body: any bytes."),
    "content_type": _item(_TEXT, "As for publishMessage."),
    "event_type": _item(_TEXT, "As for publishMessage."),
    "priority": _item(
        {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
        "0 (lowest) to 9; null means the producer's default.",
    ),
    "ordering_key": _item(_TEXT, "As for publishMessage."),
    "headers": _item(
        {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
        "Forwarded to consumers.",
    ),
}
"""Fields of each message: validated like an item of a batch, now and at each firing."""
FIELDS = TIMING | CONTENT


def clean(name: str, values: object) -> dict[str, Any]:
    """Read each timing field; the fields of the message stay as they were given.

    Raises InvalidValues.
    """
    if fault := names.slug(name):
        raise InvalidValues([FieldError("name", fault)])
    cleaned = fields.clean(FIELDS, values, partial=False)
    if (cleaned["cron"] is None) == (cleaned["every_ms"] is None):
        raise InvalidValues([FieldError("cron", "Give either cron or every_ms.")])
    start_at, end_at = cleaned["start_at"], cleaned["end_at"]
    if start_at and end_at and end_at < start_at:
        raise InvalidValues([FieldError("end_at", "It would end before it starts.")])
    return cleaned
