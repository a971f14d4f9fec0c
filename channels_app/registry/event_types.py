"""Register an event type of a channel: its description, its JSON Schema, an example (S1-10)."""

import functools
from collections.abc import Mapping
from typing import Any

from channels_app.access.principal import Principal
from channels_app.core import names
from channels_app.core.errors import FieldError, Forbidden, Invalid, NotFound
from channels_app.core.http import ALWAYS, Precondition
from channels_app.database import transactions
from channels_app.models import AuditEntry, Channel, EventType
from channels_app.registry.resource import Resource, WriteResult
from channels_app.serializers.event_types import EventTypeSerializer

_RESOURCE: Resource[EventType] = Resource("event_type", EventType, EventTypeSerializer)


def write(
    channel: str,
    name: str,
    values: Mapping[str, Any],
    *,
    partial: bool,
    principal: Principal,
    condition: Precondition = ALWAYS,
) -> WriteResult[EventType]:
    """Create the event type or replace it; with ``partial`` change fields of an existing one.

    Writing the same values again changes nothing. Raises Invalid, Forbidden for another owner's,
    NotFound and PreconditionFailed.
    """
    if fault := names.event_type(name):
        raise Invalid.of([FieldError("name", fault)])

    def work() -> WriteResult[EventType]:
        row, event_type = _find(channel, name)
        if event_type is None and partial:
            raise _unknown(name)
        _check_owner(event_type, principal)
        return _RESOURCE.write(
            event_type or EventType(channel=row, name=name, producer=principal.producer),
            values,
            f"event-type:{channel}/{name}",
            partial=partial,
            principal=principal,
            condition=condition,
        )

    return transactions.run(work, on_collision=lambda: None)


put, patch = functools.partial(write, partial=False), functools.partial(write, partial=True)


def remove(
    channel: str,
    name: str,
    *,
    principal: Principal,
    condition: Precondition = ALWAYS,
) -> None:
    """Delete an event type; messages of that type are accepted unchecked from then on.

    Raises Forbidden for another owner's, NotFound and PreconditionFailed.
    """
    transactions.run(lambda: _remove(channel, name, principal, condition))


def _find(channel_slug: str, name: str) -> tuple[Channel, EventType | None]:
    channel = Channel.objects.filter(slug=channel_slug).first()
    if channel is None:
        raise NotFound("unknown_channel", f"There is no channel {channel_slug}.")
    return channel, channel.event_type_set.select_for_update().filter(name=name).first()


def _unknown(name: str) -> NotFound:
    return NotFound("unknown_event_type", f"The channel has no event type {name}.")


def _check_owner(event_type: EventType | None, principal: Principal) -> None:
    if event_type is not None and not principal.may_change_shared(event_type.producer):
        detail = "Another producer registered the event type: only it or an operator can change it."
        raise Forbidden("not_the_owner", detail)


def _remove(channel_slug: str, name: str, principal: Principal, condition: Precondition) -> None:
    _, event_type = _find(channel_slug, name)
    if event_type is None:
        raise _unknown(name)
    _check_owner(event_type, principal)
    condition.require(event_type.version, "event type")
    before = EventTypeSerializer.describe(event_type)
    event_type.delete()
    AuditEntry.record(
        principal.actor,
        "event_type.delete",
        f"event-type:{channel_slug}/{name}",
        reason=principal.reason,
        before=before,
    )
