"""Define and check the fields of request bodies (channels_app/core/fields.py)."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from rest_framework.request import Request

from channels_app.api.base import Sender, json_object
from channels_app.conf import conf
from channels_app.core import fields, ids, times
from channels_app.core.errors import FieldError, Invalid
from channels_app.core.fields import Field
from channels_app.database import clock
from delivery import replay
from delivery.core.leases import MAX_TOKEN_LENGTH, MAX_WORKER_LENGTH

MAX_RECEIVED = 100
"""Maximum messages of one response, and leases of one request."""
MAX_WAIT_S = 20
MAX_LEASE_S = 43_200
MAX_DELAY_S = 86_400
LOWEST_RATE, HIGHEST_RATE = 0.001, 10_000.0

_REASON = Field(fields.nullable(fields.text(500, lines=True)))
_RATE = Field(fields.nullable(fields.number(LOWEST_RATE, HIGHEST_RATE)))
_DRY_RUN = Field(fields.nullable(fields.boolean))


def _anything(value: object) -> object:
    # Checked separately, so that error messages name the inner fields.
    return value


def _delivery_id(value: object) -> int:
    number = ids.from_public(ids.DELIVERY, value) if isinstance(value, str) else None
    if number is None:
        raise ValueError("Send the id of a delivery, like dlv_0cz9k3v8m0001.")
    return number


REPAIR: dict[str, Field] = {"reason": _REASON}
SKIP: dict[str, Field] = {"head": Field(fields.nullable(_delivery_id)), "reason": _REASON}
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
_LEASES = Field(
    fields.listed(fields.text(MAX_TOKEN_LENGTH), MAX_RECEIVED),
    required=True,
    help="Leases from receiveMessages, of any consumers.",
)
_DELAY = Field(
    fields.nullable(fields.number(0, MAX_DELAY_S)), help="Seconds until it can be received again."
)
_LEASE = Field(
    fields.nullable(fields.number(1, MAX_LEASE_S)), help="Seconds until the lease ends; default 30."
)
RECEIVE: dict[str, Field] = {
    "max": Field(
        fields.nullable(fields.whole(1, MAX_RECEIVED)), help="Maximum messages; default 10."
    ),
    "wait_s": Field(
        fields.nullable(fields.number(0, MAX_WAIT_S)),
        help="Seconds to wait for the first message; default 0.",
    ),
    "lease_s": _LEASE,
    "worker_id": Field(
        fields.nullable(fields.text(MAX_WORKER_LENGTH)),
        help="Name of the worker, shown to people; default: the key's id.",
    ),
    "keys": Field(
        fields.nullable(fields.choice("any", "sticky")),
        help="sticky: messages of an ordering key go to the same `worker_id` while it keeps "
        "receiving; default any.",
    ),
    "resume": Field(
        fields.nullable(fields.boolean),
        help="After a restart: first receive again what this `worker_id` still holds.",
    ),
    "auto_ack": Field(
        fields.nullable(fields.boolean),
        help="Acknowledge before the response: delivery at most once.",
    ),
}
ACK: dict[str, Field] = {"leases": _LEASES}
NACK: dict[str, Field] = {
    "leases": _LEASES,
    "delay_s": _DELAY,
    "error": Field(
        fields.nullable(fields.one_line(300)),
        help="What failed, for the history. Control characters become spaces.",
    ),
    "final": Field(
        fields.nullable(fields.boolean), help="Do not retry: the delivery is dead at once."
    ),
}
EXTEND: dict[str, Field] = {"leases": _LEASES, "lease_s": _LEASE}
RELEASE: dict[str, Field] = {"leases": _LEASES, "delay_s": _DELAY}
RESCHEDULE: dict[str, Field] = {
    "priority": Field(fields.whole(0, 9)),
    "due_at": Field(lambda value: times.soon(value, clock.now(), days=conf().max_future_days)),
    "delay_ms": Field(lambda value: times.delay_ms(value, days=conf().max_future_days)),
    "reason": _REASON,
}
MANY: dict[str, Field] = {
    "messages": Field(_anything, required=True),
    "reason": _REASON,
}
CANCEL_ITEM: dict[str, Field] = {
    "id": Field(fields.text(100), required=True),
    "version": Field(fields.nullable(fields.whole(0, 2**31 - 1))),
}
MOVE_ITEM: dict[str, Field] = CANCEL_ITEM | {
    name: field for name, field in RESCHEDULE.items() if name != "reason"
}


def read(
    request: Request,
    known: Mapping[str, Field],
    *,
    optional: bool = False,
    sender: Sender | None = None,
) -> dict[str, Any]:
    """Parse the body; returns its fields without null ones. Raises ApiProblem and Invalid."""
    return cleaned(json_object(request, optional=optional, sender=sender), known)


def cleaned(body: object, known: Mapping[str, Field]) -> dict[str, Any]:
    """Check a parsed object; returns its fields without null ones. Raises Invalid."""
    found = fields.clean(known, body, partial=True)
    # Serializers write null for a field that was not set.
    values = {name: value for name, value in found.items() if value is not None}
    required = {name for name, field in known.items() if field.required}
    if missing := sorted(required - values.keys()):
        raise Invalid.of([FieldError(name, "This field is required.") for name in missing])
    return values


def move_of(values: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Convert ``RESCHEDULE`` fields to arguments: a delay counts from now. Raises Invalid."""
    delay_ms = values.pop("delay_ms", None)
    if delay_ms is not None:
        if "due_at" in values:
            raise Invalid(
                "invalid_fields", "Give an instant or a delay, not both.", field="delay_ms"
            )
        values["due_at"] = now + timedelta(milliseconds=delay_ms)
    if not values:
        raise Invalid("invalid_fields", "Send a priority, a time (due_at or delay_ms), or both.")
    return values
