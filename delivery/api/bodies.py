"""What requests may hold, field by field (channels_app/rules/fields.py)."""

from collections.abc import Mapping
from typing import Any

from rest_framework.request import Request

from channels_app import clock
from channels_app.api.base import json_object
from channels_app.errors import Invalid
from channels_app.rules import fields, times
from channels_app.rules.fields import BadValues, Field
from delivery.steps import replay

LOWEST_RATE, HIGHEST_RATE = 0.001, 10_000.0

_REASON = Field(fields.nullable(fields.text(500, lines=True)))
_RATE = Field(fields.nullable(fields.number(LOWEST_RATE, HIGHEST_RATE)))
_DRY_RUN = Field(fields.nullable(fields.boolean))


def _anything(value: object) -> object:
    # Read on its own, so that its faults carry its own fields' names.
    return value


REPAIR: dict[str, Field] = {"reason": _REASON}
REPLAY: dict[str, Field] = {
    "filter": Field(_anything, required=True),
    "dry_run": _DRY_RUN,
    "rate_per_second": _RATE,
    "reason": _REASON,
}
BACKFILL: dict[str, Field] = {
    **dict.fromkeys(replay.BACKFILL_FIELDS, Field(_anything)),
    "dry_run": _DRY_RUN,
    "rate_per_second": _RATE,
    "reason": _REASON,
}
RESCHEDULE: dict[str, Field] = {
    "priority": Field(fields.whole(0, 9)),
    "due_at": Field(lambda value: times.soon(value, clock.now())),
    "reason": _REASON,
}


def read(request: Request, known: Mapping[str, Field], *, optional: bool = False) -> dict[str, Any]:
    """The body's fields, null ones left out. Raises ApiProblem and Invalid."""
    body = json_object(request, optional=optional)
    required = {name for name, field in known.items() if field.required}
    try:
        values = fields.clean(known, body, partial=True)
        if missing := sorted(required - values.keys()):
            raise BadValues([fields.Fault(name, "This field is required.") for name in missing])
    except BadValues as bad:
        raise Invalid.of(printable(bad)) from None
    return {name: value for name, value in values.items() if value is not None}


def printable(bad: BadValues) -> BadValues:
    """The faults with names that every answer can carry: unknown ones are the caller's text."""
    return BadValues(
        [
            fields.Fault(fault.field.encode("ascii", "backslashreplace").decode(), fault.detail)
            for fault in bad.faults
        ]
    )
