"""Register an event type of a channel: its description, its JSON Schema, an example (S1-10)."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from channels_app.core import access, names
from channels_app.core.access import Tenant
from channels_app.core.errors import FieldError, Forbidden, Invalid, NotFound
from channels_app.core.http import ALWAYS, Precondition
from channels_app.database import transactions
from channels_app.models import AuditEntry, Channel, EventType, Producer
from channels_app.registry.resource import Resource, WriteResult
from channels_app.serializers.event_types import EventTypeSerializer

_RESOURCE: Resource[EventType] = Resource("event_type", EventType, EventTypeSerializer)


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


def write(
    channel: str,
    name: str,
    values: Mapping[str, Any],
    *,
    partial: bool,
    actor: str,
    writer: Writer = OPERATOR,
    condition: Precondition = ALWAYS,
    reason: str = "",
) -> WriteResult[EventType]:
    """Create the event type or replace it; with ``partial`` change fields of an existing one.

    Writing the same values again changes nothing. Raises Invalid, Forbidden for another owner's,
    NotFound and PreconditionFailed.
    """
    if fault := names.event_type(name):
        raise Invalid.of([FieldError("name", fault)])

    def work() -> WriteResult[EventType]:
        row, found = _find(channel, name)
        if found is None and partial:
            raise _unknown(name)
        _check_owner(found, writer)
        return _RESOURCE.write(
            found or EventType(channel=row, name=name, producer=writer.producer),
            values,
            f"event-type:{channel}/{name}",
            partial=partial,
            actor=actor,
            condition=condition,
            reason=reason,
        )

    return transactions.run(work, on_collision=lambda: None)


put, patch = functools.partial(write, partial=False), functools.partial(write, partial=True)


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


def _find(channel_slug: str, name: str) -> tuple[Channel, EventType | None]:
    channel = Channel.objects.filter(slug=channel_slug).first()
    if channel is None:
        raise NotFound("unknown_channel", f"There is no channel {channel_slug}.")
    return channel, channel.event_type_set.select_for_update().filter(name=name).first()


def _unknown(name: str) -> NotFound:
    return NotFound("unknown_event_type", f"The channel has no event type {name}.")


def _check_owner(found: EventType | None, writer: Writer) -> None:
    if found is not None and not writer.owns(found.producer):
        detail = "Another producer registered the event type: only it or an operator can change it."
        raise Forbidden("not_the_owner", detail)


def _remove(
    channel_slug: str, name: str, actor: str, writer: Writer, condition: Precondition, reason: str
) -> None:
    _, found = _find(channel_slug, name)
    if found is None:
        raise _unknown(name)
    _check_owner(found, writer)
    condition.require(found.version, "event type")
    before = EventTypeSerializer.describe(found)
    found.delete()
    AuditEntry.record(
        actor,
        "event_type.delete",
        f"event-type:{channel_slug}/{name}",
        reason=reason,
        before=before,
    )
