"""Register an event type of a channel: its description, its JSON Schema, an example (S1-10)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from channels_app.core import access, fields, json_schema, names, settings
from channels_app.core.access import Tenant
from channels_app.core.errors import FieldError, Forbidden, Invalid, NotFound
from channels_app.core.fields import Described, Field
from channels_app.core.http import ALWAYS, Precondition
from channels_app.database import transactions
from channels_app.models import AuditEntry, Channel, EventType, Producer
from channels_app.registry.configuration import Resource, WriteResult, assign

MAX_SCHEMA_BYTES = 65_536


def _schema(value: object) -> Any:
    json_schema.check(fields.json_value(MAX_SCHEMA_BYTES)(value))
    return value


FIELDS: dict[str, Field] = {
    "description": settings.description,
    "schema": Field(
        fields.nullable(Described(_schema, {"type": ["object", "boolean"]})),
        help="JSON Schema (2020-12 unless $schema says otherwise) that bodies must satisfy.",
    ),
    "example": Field(fields.json_value(MAX_SCHEMA_BYTES), help="An example of a body."),
    "deprecated": Field(fields.boolean, default=False, help="Accepted, but no longer recommended."),
}


class Writer(NamedTuple):
    """The caller that writes an event type."""

    tenant: Tenant
    producer: Producer | None = None
    """The producer of the caller's key."""

    def owns(self, producer: Producer | None) -> bool:
        """Whether the writer may change what this producer registered: its own, or its team's.

        Event types registered by the installation have no producer.
        """
        if self.tenant.everything or producer == self.producer:
            return True
        team_id = producer.team_id if producer else None
        return team_id is not None and self.tenant.owns(team_id)


OPERATOR = Writer(access.OPERATOR)


def put(
    channel: str,
    name: str,
    values: Mapping[str, Any],
    *,
    actor: str,
    writer: Writer = OPERATOR,
    condition: Precondition = ALWAYS,
    reason: str = "",
) -> WriteResult[EventType]:
    """Create the event type or replace it; writing the same values again changes nothing.

    Raises Invalid, Forbidden for another owner's, NotFound (unknown channel) and
    PreconditionFailed.
    """
    return _register(channel, name, values, actor, writer, condition, reason, partial=False)


def patch(
    channel: str,
    name: str,
    values: Mapping[str, Any],
    *,
    actor: str,
    writer: Writer = OPERATOR,
    condition: Precondition = ALWAYS,
    reason: str = "",
) -> WriteResult[EventType]:
    """Change the given fields of an existing event type.

    Raises Invalid, Forbidden for another owner's, NotFound and PreconditionFailed.
    """
    return _register(channel, name, values, actor, writer, condition, reason, partial=True)


def remove(
    channel: str,
    name: str,
    *,
    actor: str,
    writer: Writer = OPERATOR,
    condition: Precondition = ALWAYS,
    reason: str = "",
) -> None:
    """Delete an event type; messages of that type are accepted unchecked from then on.

    Raises Forbidden for another owner's, NotFound and PreconditionFailed.
    """
    transactions.run(lambda: _remove(channel, name, actor, writer, condition, reason))


def describe(event_type: EventType) -> dict[str, Any]:
    """The event type's fields in the form in which they are written."""
    return {name: getattr(event_type, name) for name in FIELDS}


def _register(
    channel: str,
    name: str,
    values: Mapping[str, Any],
    actor: str,
    writer: Writer,
    condition: Precondition,
    reason: str,
    *,
    partial: bool,
) -> WriteResult[EventType]:
    if fault := names.event_type(name):
        raise Invalid.of([FieldError("name", fault)])
    wanted = fields.clean(FIELDS, values, partial=partial)
    return transactions.run(
        lambda: _write(channel, name, wanted, actor, writer, condition, reason, create=not partial),
        on_collision=lambda: None,
    )


def _write(
    channel_slug: str,
    name: str,
    wanted: dict[str, Any],
    actor: str,
    writer: Writer,
    condition: Precondition,
    reason: str,
    *,
    create: bool,
) -> WriteResult[EventType]:
    channel, found = _find(channel_slug, name)
    if found is None and not create:
        raise NotFound("unknown_event_type", f"The channel has no event type {name}.")
    _check_owner(found, writer)
    event_type = found or EventType(channel=channel, name=name, producer=writer.producer)
    target = f"event-type:{channel_slug}/{name}"
    return _RESOURCE.save(
        event_type, wanted, target, actor=actor, condition=condition, reason=reason
    )


_RESOURCE = Resource("event_type", "event type", describe, assign)


def _remove(
    channel_slug: str, name: str, actor: str, writer: Writer, condition: Precondition, reason: str
) -> None:
    _, found = _find(channel_slug, name)
    if found is None:
        raise NotFound("unknown_event_type", f"The channel has no event type {name}.")
    _check_owner(found, writer)
    condition.require(found.version, "event type")
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


def _check_owner(found: EventType | None, writer: Writer) -> None:
    if found is not None and not writer.owns(found.producer):
        detail = "Another producer registered the event type: only it or an operator can change it."
        raise Forbidden("not_the_owner", detail)
