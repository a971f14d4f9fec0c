"""Describe an event type of a channel: the schema of its bodies, an example."""

from channels_app.core import json_schema, values
from channels_app.serializers.base import ResourceSerializer
from channels_app.serializers.fields import (
    OPTIONAL,
    Description,
    EventTypeName,
    Flag,
    JsonValue,
    Slug,
)

MAX_SCHEMA_BYTES = 65_536


def _check_json(value: object) -> None:
    values.check_json(value, MAX_SCHEMA_BYTES)


def _check_schema(value: object) -> None:
    _check_json(value)
    json_schema.check(value)


class EventTypeSerializer(ResourceSerializer):
    """An event type of a channel."""

    channel = Slug(read_only=True, source="channel.slug")
    name = EventTypeName(read_only=True)
    description = Description()
    schema = JsonValue(
        _check_schema,
        {"type": ["object", "boolean"]},
        help_text="JSON Schema (2020-12 unless $schema says otherwise) that bodies must satisfy.",
        **OPTIONAL,
    )
    example = JsonValue(_check_json, {}, help_text="An example of a body.", **OPTIONAL)
    deprecated = Flag(default=False, help_text="Accepted, but no longer recommended.")
