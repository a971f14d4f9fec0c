"""Register schedules whose messages their channel accepts, and build those messages."""

from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from channels_app.core import names
from channels_app.core.encryption import Unreadable
from channels_app.core.errors import FieldError, Invalid, KeyUnavailable, NotFound
from channels_app.core.recurrence import Content
from channels_app.database import clock
from channels_app.ingest import publication
from channels_app.ingest.accept import Publication
from channels_app.models import Producer, Schedule
from channels_app.registry import schedules
from channels_app.registry.cache import ChannelConfig
from channels_app.registry.resource import WriteResult
from channels_app.registry.schedules import Order
from channels_app.serializers.schedules import CONTENT, ScheduleSerializer

_ANY_KEY = "schedule"
"""Placeholder for validation; each firing has an idempotency key of its own."""


def put(
    order: Order, values: Mapping[str, Any], *, channel: ChannelConfig | None = None
) -> WriteResult[Schedule]:
    """Register a schedule whose messages the channel accepts; ``channel`` is from the config cache.

    Raises what the step raises, Invalid, and BrokerError for a message that would be rejected.
    """
    channel = channel or publication.channel_of(order.channel)
    cleaned = _cleaned(order.name, values)
    schedule = Schedule.objects.filter(channel_id=channel.id, name=order.name).first()
    producer = schedule.producer if schedule else order.principal.producer
    return schedules.put(order, cleaned, _content(cleaned, channel, producer))


def patch(order: Order, values: Mapping[str, Any]) -> WriteResult[Schedule]:
    """Change the given settings of a schedule, and validate its message again, as ``put`` does.

    Of ``cron`` and ``every_ms``, the given one replaces the other. Raises what ``put`` raises.
    Without a new body, raises NotFound if the stored one is damaged, and KeyUnavailable.
    """
    channel = publication.channel_of(order.channel)

    def renew(row: Schedule) -> tuple[dict[str, Any], Content]:
        cleaned = _cleaned(order.name, _merged(row, values))
        return cleaned, _content(cleaned, channel, row.producer)

    return schedules.patch(order, renew)


def message(
    schedule: Schedule, channel: ChannelConfig, producer: Producer | None, key: str, now: datetime
) -> Publication:
    """The message to publish, validated again, since its channel or producer may have changed.

    Raises BrokerError and core.encryption.Unreadable.
    """
    body = schedules.body_of(schedule)
    settings = ScheduleSerializer.describe(schedule)
    item = {part: settings.get(part) for part in CONTENT}
    item |= {"body_base64": b64encode(body).decode(), "idempotency_key": key}
    return publication.from_item(item, channel, producer, now)


def _cleaned(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    if fault := names.slug(name):
        raise Invalid.of([FieldError("name", fault)])
    return ScheduleSerializer().read(values)


def _content(
    cleaned: Mapping[str, Any], channel: ChannelConfig, producer: Producer | None
) -> Content:
    """The message of a schedule, if the channel accepts it. Raises BrokerError."""
    item = {part: cleaned[part] for part in CONTENT} | {"idempotency_key": _ANY_KEY}
    read = publication.from_item(item, channel, producer, clock.now())
    return Content(
        body=read.body,
        content_type=read.content_type,
        event_type=read.event_type,
        priority=None if item["priority"] is None else read.priority,
        ordering_key=read.ordering_key,
        headers=read.headers,
    )


def _merged(schedule: Schedule, values: Mapping[str, Any]) -> dict[str, Any]:
    kept = ScheduleSerializer.describe(schedule)
    for part in ("start_at", "end_at"):
        # In microseconds, unlike `describe`, since every_ms counts from start_at.
        exact = getattr(schedule, part)
        kept[part] = exact.isoformat() if exact else None
    for part, other in (("cron", "every_ms"), ("every_ms", "cron")):
        if values.get(part) is not None:
            kept[other] = None
    if not {"body", "body_base64"} & values.keys():
        try:
            kept["body_base64"] = b64encode(schedules.body_of(schedule)).decode()
        except KeyUnavailable:
            raise
        except Unreadable as error:
            raise NotFound(
                "body_unreadable", f"{error} Send the body again with this change."
            ) from None
    return kept | dict(values)
