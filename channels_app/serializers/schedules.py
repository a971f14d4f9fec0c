"""Describe a schedule: when it recurs, and the message that it publishes."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rest_framework.serializers import ValidationError

from channels_app.core import recurrence
from channels_app.models import Schedule
from channels_app.serializers.base import ResourceSerializer, StrictSerializer
from channels_app.serializers.fields import (
    OPTIONAL,
    Description,
    Instant,
    JsonValue,
    Listed,
    OneOf,
    Slug,
    Text,
    Whole,
    WrittenInstant,
)

MAX_LIMIT = 1_000_000_000
SHOWN = 5
"""Number of upcoming occurrences that are shown."""
TIMING = (
    *("description", "cron", "every_ms", "timezone", "start_at", "end_at"),
    *("limit", "misfire", "overlap"),
)
"""Fields for when the schedule recurs."""
CONTENT = (
    *("body", "body_base64", "content_type", "event_type", "priority"),
    *("ordering_key", "headers"),
)
"""Fields of each message: validated like an item of a batch, now and at each firing."""
_TEXT = {"type": ["string", "null"]}


class Cron(Text):
    """A cron expression; the row has '' for none."""

    def to_internal_value(self, data: Any) -> str:
        """The expression with single blanks."""
        return self.checked(recurrence.check_cron, super().to_internal_value(data))

    def to_representation(self, value: str) -> Any:
        """Null for none."""
        return value or None


class Content(JsonValue):
    """A part of the message, which is checked as a whole; the row has '' for no text."""

    def __init__(self, schema: Mapping[str, Any], **options: Any) -> None:
        super().__init__(None, schema, **OPTIONAL, **options)

    def to_representation(self, value: Any) -> Any:
        """Null for no text."""
        return None if value == "" else value


class Upcoming(Listed):
    """The next occurrences after the context's ``now``."""

    def get_attribute(self, instance: Schedule) -> list[datetime]:
        """As many as are left."""
        is_active = instance.state == Schedule.State.ACTIVE
        ahead = instance.timetable.upcoming(self.context["now"], SHOWN) if is_active else []
        if instance.limit is not None:
            ahead = ahead[: max(0, instance.limit - instance.fired_count)]
        return ahead


class FiringSerializer(StrictSerializer):
    """The result of an occurrence."""

    result = OneOf(recurrence.RESULTS)
    occurrence_at = Instant(allow_null=True, help_text="null for a manual run.")
    at = Instant()
    message = Text(allow_null=True, help_text="Id of the published message.")
    count = Whole(help_text="Number of occurrences, beginning with this one.")
    detail = Text()


class ScheduleSummarySerializer(ResourceSerializer):
    """A schedule without the content of its messages."""

    channel = Slug(read_only=True, source="channel.slug")
    name = Slug(read_only=True)
    producer = Text(read_only=True, allow_null=True, source="producer.slug")
    state = OneOf(Schedule.State.values, read_only=True)
    description = Description()
    cron = Cron(
        recurrence.MAX_CRON_LENGTH,
        help_text="minute hour day month weekday; a sixth field in front is seconds.",
        **OPTIONAL,
    )
    every_ms = Whole(
        recurrence.MIN_INTERVAL_MS,
        recurrence.MAX_MS,
        help_text="Instead of cron: milliseconds from one occurrence to the next.",
        **OPTIONAL,
    )
    timezone = Text(
        recurrence.MAX_ZONE_LENGTH,
        check=recurrence.zone_fault,
        default="UTC",
        help_text="IANA name of the time zone for cron.",
    )
    start_at = WrittenInstant(
        help_text="No occurrence before this; every_ms counts from it.", **OPTIONAL
    )
    end_at = WrittenInstant(help_text="No occurrence after this.", **OPTIONAL)
    limit = Whole(1, MAX_LIMIT, help_text="Total number of messages.", **OPTIONAL)
    misfire = OneOf(
        [recurrence.FIRE_ONCE, recurrence.FIRE_ALL, recurrence.SKIP],
        default=recurrence.FIRE_ONCE,
        help_text="Which occurrences more than a minute late are published: the last, all, or "
        "none.",
    )
    overlap = OneOf(
        [recurrence.ALLOW, recurrence.SKIP_IF_UNDELIVERED],
        default=recurrence.ALLOW,
        help_text="Whether to publish while the previous message has unfinished deliveries.",
    )
    content_type = Content(_TEXT, help_text="As for publishMessage.")
    event_type = Content(_TEXT, help_text="As for publishMessage.")
    priority = Content(
        {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
        help_text="0 (lowest) to 9; null means the producer's default.",
    )
    ordering_key = Content(_TEXT, help_text="As for publishMessage.")
    body_bytes = Whole(read_only=True)
    words = Text(read_only=True, source="timetable.words", help_text="The timetable in words.")
    next = Upcoming(Instant(), SHOWN, read_only=True)
    last = FiringSerializer(read_only=True, allow_null=True)
    recent = Listed(FiringSerializer(), recurrence.MAX_KEPT, read_only=True)
    fired_count = Whole(read_only=True)
    skipped_count = Whole(read_only=True)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Exactly one timetable, with an occurrence."""
        if (attrs["cron"] is None) == (attrs["every_ms"] is None):
            raise ValidationError({"cron": "Give either cron or every_ms."})
        start_at, end_at = attrs["start_at"], attrs["end_at"]
        if start_at and end_at and end_at < start_at:
            raise ValidationError({"end_at": "It would end before it starts."})
        return attrs


class ScheduleSerializer(ScheduleSummarySerializer):
    """A schedule with the content of its messages. Its settings are always checked as a whole."""

    headers = Content(
        {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
        help_text="Forwarded to consumers.",
    )
    # Stored encrypted: the API adds it.
    body = Content(_TEXT, from_context=True, help_text="Text; stored as UTF-8.")
    body_base64 = Content(
        _TEXT | {"contentEncoding": "base64"},
        from_context=True,
        help_text="Instead of body: any bytes.",
    )


class ScheduleQuerySerializer(StrictSerializer):
    """Which schedules a list holds."""

    state = OneOf(Schedule.State.values, required=False, help_text="Default: all.")
