"""Describe a message, alone and with its deliveries, and what many moves or cancellations did."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from channels_app.models import Message
from channels_app.serializers.base import ResponseSerializer
from channels_app.serializers.fields import (
    Flag,
    Instant,
    JsonValue,
    Listed,
    OneOf,
    Text,
    Whole,
)
from delivery.serializers.base import AddressField
from delivery.serializers.deliveries import DeliverySerializer, message_id

_MAYBE: Mapping[str, Any] = {"required": False, "sometimes": True}


class MessageSerializer(ResponseSerializer):
    """A message without its body, headers and producer; ``context_for`` makes its context."""

    id = message_id()
    channel = Text(from_context=True)
    state = OneOf(Message.Shown.values, title="MessageState", source="shown.value")
    scheduled = Flag(from_context=True, help_text="True until it is due.")
    event_type = Text()
    priority = Whole(0, 9)
    ordering_key = Text()
    content_type = Text()
    body_bytes = Whole()
    accepted_at = Instant()
    due_at = Instant(help_text="It is not sent before this instant.")
    expires_at = Instant(allow_null=True, help_text="It is not sent after this instant.")
    consumer_count = Whole(help_text="Consumers that it was fanned out to, or will be.")
    version = Whole(help_text="The version in its ETag.")
    url = AddressField(lambda row: f"messages/{row}")
    body_url = AddressField(
        lambda row: f"messages/{row}/body", help_text="Returns the exact bytes of the body."
    )

    @staticmethod
    def context_for(channel: str, now: datetime) -> dict[str, Callable[[Message], Any]]:
        """Return the context for messages of one channel, as they are now."""
        return {"channel": lambda _: channel, "scheduled": lambda row: row.is_scheduled(now)}


class MessageWithDeliveriesSerializer(MessageSerializer):
    """A message with what its caller may see of it, which the context provides."""

    headers = JsonValue(
        None,
        {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
        from_context=True,
        help_text="Forwarded to consumers. Null on a sensitive channel without the scope "
        "sensitive.",
    )
    idempotency_key = Text(
        from_context=True, help_text="Empty unless the caller's side published it."
    )
    producer = Text(
        from_context=True,
        allow_null=True,
        help_text="Null unless the caller's side published it.",
    )
    deliveries = Listed(
        DeliverySerializer(),
        from_context=True,
        help_text="Up to 1,000 deliveries: all if the caller's side published the message, "
        "else those of its own consumers.",
    )


class CancelledMessageSerializer(MessageWithDeliveriesSerializer):
    """A message whose queued deliveries were cancelled."""

    cancelled_count = Whole(from_context=True, help_text="Deliveries that this call cancelled.")


class ManyResultSerializer(ResponseSerializer):
    """What happened to one of many messages."""

    id = Text(allow_null=True)
    status = Whole(help_text="200, or the status of the error.")
    version = Whole(help_text="The new version.", **_MAYBE)
    cancelled_count = Whole(**_MAYBE)
    code = Text(**_MAYBE)
    detail = Text(**_MAYBE)
    field = Text(**_MAYBE)


class ManyResultsSerializer(ResponseSerializer):
    """What happened to many messages."""

    items = Listed(ManyResultSerializer(), help_text="In the order of the request.")
    done = Whole()
    refused = Whole()


class TimelineBucketSerializer(ResponseSerializer):
    """How many messages are due from an instant on."""

    count = Whole()

    def get_fields(self) -> dict[str, Any]:
        """Add ``from``, which is a keyword in Python."""
        return {"from": Instant(), **super().get_fields()}


class TimelineHistogramSerializer(ResponseSerializer):
    """Messages by the time when they are due."""

    width_s = Whole()
    buckets = Listed(TimelineBucketSerializer())
    count = Whole()
    complete = Flag(help_text="False if there are more than were counted.")
