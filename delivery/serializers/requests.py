"""Describe the bodies of requests that move, cancel, skip or replay."""

from datetime import datetime
from typing import Any

from channels_app.conf import conf
from channels_app.core import ids, times
from channels_app.database import clock
from channels_app.serializers.fields import (
    Flag,
    JsonValue,
    Number,
    OneOf,
    Schema,
    Text,
    Whole,
    WrittenInstant,
)
from delivery.serializers.base import UNSET, PublicId, Reason, RequestSerializer
from delivery.serializers.filters import BackfillFilterSerializer
from delivery.serializers.replays import FILTER_SCHEMA

LOWEST_RATE, HIGHEST_RATE = 0.001, 10_000.0
MAX_MESSAGES = 200
"""Maximum, since one transaction locks and writes them and a request should not take seconds."""


class RepairSerializer(RequestSerializer):
    """A repair by an operator."""

    reason = Reason()


class SkipSerializer(RequestSerializer):
    """Skipping the head of an ordering key."""

    head = PublicId(
        ids.DELIVERY,
        required=False,
        help_text="The delivery to skip; default: the current head.",
    )
    reason = Reason()


class CallbackSerializer(RequestSerializer):
    """A consumer's acknowledgement."""

    status = OneOf(["ok", "failed", "working"], required=False)
    error = Text(2000, lines=True, required=False)


def _rate() -> Number:
    return Number(
        LOWEST_RATE,
        HIGHEST_RATE,
        help_text="Deliveries queued per second; null for all at once.",
        **UNSET,
    )


class ReplayRequestSerializer(RequestSerializer):
    """A replay; its filter is parsed where its errors are placed."""

    filter = JsonValue(None, FILTER_SCHEMA)
    dry_run = Flag(default=False)
    rate_per_second = _rate()
    reason = Reason()


class BackfillRequestSerializer(BackfillFilterSerializer):
    """A backfill."""

    dry_run = Flag(default=False)
    rate_per_second = _rate()
    reason = Reason()


class DueAt(WrittenInstant):
    """When a message is due."""

    def to_internal_value(self, data: Any) -> datetime:
        """The instant, within the installation's limit."""
        days = conf().max_future_days
        return self.checked(lambda value: times.soon(value, clock.now(), days=days), data)


class DelayMs(Whole):
    """When a message is due, from now."""

    def to_internal_value(self, data: Any) -> int:
        """Milliseconds, within the installation's limit."""
        days = conf().max_future_days
        return self.checked(lambda value: times.delay_ms(value, days=days), data)


class MoveSerializer(RequestSerializer):
    """Where a message moves."""

    refusing_null = ("priority", "due_at", "delay_ms")
    priority = Whole(0, 9, required=False)
    due_at = DueAt(
        required=False, help_text="New due time; a past one means now. Excludes delay_ms."
    )
    delay_ms = DelayMs(
        0,
        times.MAX_DELAY_MS,
        required=False,
        help_text="New due time, in milliseconds from now by the broker's clock.",
    )


class RescheduleSerializer(MoveSerializer):
    """A move, with its reason."""

    reason = Reason()

    def written_schema(self, *, partial: bool = False) -> Schema:
        """Add the rules: at least one change, and not two times."""
        return {
            **super().written_schema(partial=partial),
            "anyOf": [{"required": [name]} for name in ("priority", "due_at", "delay_ms")],
            "not": {"required": ["due_at", "delay_ms"]},
        }


class CancelManyItemSerializer(RequestSerializer):
    """One of many messages."""

    id = Text(100)
    version = Whole(0, 2**31 - 1, help_text="Like If-Match: 412 if changed.", **UNSET)


class MoveManyItemSerializer(MoveSerializer, CancelManyItemSerializer):
    """One of many messages, and where it moves."""


class ManySerializer(RequestSerializer):
    """Many messages, each of which is checked on its own."""

    messages = JsonValue(None, {})
    reason = Reason()

    @classmethod
    def schema_of(cls, item: RequestSerializer) -> Schema:
        """The JSON Schema of what it takes, with messages that ``item`` takes."""
        schema = cls().written_schema()
        items = {"type": "array", "items": item.json_schema(), "maxItems": MAX_MESSAGES}
        schema["properties"]["messages"] = items
        return schema
