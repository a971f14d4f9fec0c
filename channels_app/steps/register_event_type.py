"""Register an event type of a channel: its description, its JSON Schema, an example (S1-10)."""

from collections.abc import Mapping
from typing import Any

from channels_app import transactions
from channels_app.errors import Invalid, NotFound, Stale
from channels_app.models import AuditEntry, Channel, EventType
from channels_app.rules import fields, names, schemas, settings
from channels_app.rules.conditions import ALWAYS, Condition
from channels_app.rules.fields import BadValues, Described, Fault, Field
from channels_app.rules.registered import Registered

MOST_SCHEMA_BYTES = 65_536


def _schema(value: object) -> Any:
    schemas.check(fields.json_value(MOST_SCHEMA_BYTES)(value))
    return value


FIELDS: dict[str, Field] = {
    "description": settings.description,
    "schema": Field(
        fields.nullable(Described(_schema, {"type": ["object", "boolean"]})),
        help="JSON Schema (2020-12 unless $schema says otherwise) that bodies must satisfy.",
    ),
    "example": Field(fields.json_value(MOST_SCHEMA_BYTES), help="A body as it may look."),
    "deprecated": Field(fields.boolean, default=False, help="Still accepted, no longer advised."),
}


def put(
    channel: str,
    name: str,
    values: Mapping[str, Any],
    *,
    actor: str,
    condition: Condition = ALWAYS,
    reason: str = "",
) -> Registered[EventType]:
    """Create the event type or replace it; the same values twice change nothing.

    Raises Invalid, NotFound (no such channel) and Stale.
    """
    return _register(channel, name, values, actor, condition, reason, partial=False)


def patch(
    channel: str,
    name: str,
    values: Mapping[str, Any],
    *,
    actor: str,
    condition: Condition = ALWAYS,
    reason: str = "",
) -> Registered[EventType]:
    """Change the given fields of an existing event type. Raises Invalid, NotFound and Stale."""
    return _register(channel, name, values, actor, condition, reason, partial=True)


def remove(
    channel: str, name: str, *, actor: str, condition: Condition = ALWAYS, reason: str = ""
) -> None:
    """Forget an event type; messages of that type are accepted unchecked from then on.

    Raises NotFound and Stale.
    """
    transactions.run(lambda: _remove(channel, name, actor, condition, reason))


def describe(event_type: EventType) -> dict[str, Any]:
    """The event type as it is written."""
    return {name: getattr(event_type, name) for name in FIELDS}


def _register(
    channel: str,
    name: str,
    values: Mapping[str, Any],
    actor: str,
    condition: Condition,
    reason: str,
    *,
    partial: bool,
) -> Registered[EventType]:
    if fault := names.event_type(name):
        raise Invalid.of(BadValues([Fault("name", fault)]))
    try:
        wanted = fields.clean(FIELDS, values, partial=partial)
    except BadValues as bad:
        raise Invalid.of(bad) from None
    return transactions.run(
        lambda: _write(channel, name, wanted, actor, condition, reason, create=not partial),
        on_collision=lambda: None,
    )


def _write(
    channel_slug: str,
    name: str,
    wanted: dict[str, Any],
    actor: str,
    condition: Condition,
    reason: str,
    *,
    create: bool,
) -> Registered[EventType]:
    channel, found = _find(channel_slug, name)
    if found is None and not create:
        raise NotFound("unknown_event_type", f"The channel has no event type {name}.")
    _check(condition, found)
    event_type = found or EventType(channel=channel, name=name)
    before = describe(event_type) if found else None
    for field, value in wanted.items():
        setattr(event_type, field, value)
    after = describe(event_type)
    if before == after:
        return Registered(event_type)
    event_type.save()
    AuditEntry.record(
        actor,
        "event_type.update" if found else "event_type.create",
        f"event-type:{channel_slug}/{name}",
        reason=reason,
        before=before,
        after=after,
    )
    return Registered(event_type, created=found is None, changed=True)


def _remove(channel_slug: str, name: str, actor: str, condition: Condition, reason: str) -> None:
    _, found = _find(channel_slug, name)
    if found is None:
        raise NotFound("unknown_event_type", f"The channel has no event type {name}.")
    _check(condition, found)
    before = describe(found)
    found.delete()
    AuditEntry.record(
        actor,
        "event_type.delete",
        f"event-type:{channel_slug}/{name}",
        reason=reason,
        before=before,
    )


def _find(channel_slug: str, name: str) -> tuple[Channel, EventType | None]:
    channel = Channel.objects.filter(slug=channel_slug).first()
    if channel is None:
        raise NotFound("unknown_channel", f"There is no channel {channel_slug}.")
    mine = EventType.objects.select_for_update().filter(channel=channel, name=name)
    return channel, mine.first()


def _check(condition: Condition, found: EventType | None) -> None:
    if not condition.holds(found.version if found else None):
        raise Stale("stale_version", "The event type has changed since; read it again.")
