"""Describe a channel: who may use it, what it accepts, and for how long messages are kept."""

from typing import Any

from rest_framework.serializers import ValidationError

from channels_app.conf import conf
from channels_app.core import json_paths, ordering_key
from channels_app.core.http import media_range_fault
from channels_app.core.rate_limits import within
from channels_app.models import Channel, Message
from channels_app.serializers import settings
from channels_app.serializers.base import ResourceSerializer, StrictSerializer
from channels_app.serializers.fields import (
    KEPT,
    OPTIONAL,
    Description,
    Flag,
    Listed,
    OneOf,
    Slug,
    Text,
    Whole,
)
from channels_app.serializers.settings import RetryPolicy

MAX_DAYS = 3650
MAX_WINDOW_MS = 5_000
"""A waiting request holds a thread for this long."""
MAX_WINDOW_S = 31 * 86_400
"""Maximum lifetime of idempotency records; each key has one row (S0-70)."""


class WholeWithin(Whole):
    """A whole number up to a limit of the installation: the attribute ``limit`` of `conf`."""

    def __init__(self, limit: str, **options: Any) -> None:
        super().__init__(1, **options)
        self._limit = limit

    def to_internal_value(self, data: Any) -> int:
        """The number as an int."""
        within: int = Whole(1, getattr(conf(), self._limit)).to_internal_value(data)
        return within


class EffectiveLimitsSerializer(StrictSerializer):
    """What applies, with the installation's limits and defaults filled in."""

    max_body_bytes = Whole()
    idempotency_window_s = Whole()
    max_future_days = Whole()
    max_waiting_messages = Whole(allow_null=True)
    max_waiting_bytes = Whole(allow_null=True)
    retention_days = Whole()
    dead_retention_days = Whole()

    def to_representation(self, instance: Channel) -> dict[str, Any]:
        """A null quota: no limit."""
        defaults = conf()
        quota = instance.quota(defaults.channel_quota)
        return {
            "max_body_bytes": within(instance.max_body_bytes, defaults.max_body_bytes),
            "idempotency_window_s": instance.idempotency_window_s or defaults.idempotency_window_s,
            "max_future_days": within(instance.max_future_days, defaults.max_future_days),
            "max_waiting_messages": quota.messages or None,
            "max_waiting_bytes": quota.bytes or None,
            "retention_days": instance.retention_days or defaults.retention_days,
            "dead_retention_days": instance.dead_retention_days or defaults.dead_retention_days,
        }


class ChannelSerializer(ResourceSerializer):
    """A channel; null limits mean the installation's."""

    slug = Slug(read_only=True)
    description = Description()
    exposure = OneOf(
        ["internal", "external"],
        default="internal",
        help_text="Teams see external channels. A team's key uses an internal one only if it names "
        "it.",
    )
    history = OneOf(
        ["granted", "shared"],
        default="granted",
        help_text="What a team may backfill. granted: since it has access; shared: all stored "
        "messages.",
    )
    kind = OneOf(
        ["topic", "queue"],
        help_text="topic: each message goes to every consumer; queue: to one of them. It cannot "
        "change once the channel has messages.",
        **KEPT,
    )
    ordering = OneOf(
        ["keyed", "fifo"],
        default="keyed",
        help_text="For consumers with ordering. keyed: only messages with an ordering key are "
        "ordered; fifo: all are, and those without a key share one.",
    )
    ordering_key_path = Text(
        json_paths.MAX_LENGTH,
        check=ordering_key.path_fault,
        default="",
        help_text="Path of the ordering key in a JSON body, like user.id or items[0].sku, for "
        "messages published without one.",
    )
    reorder_window_ms = Whole(
        0,
        MAX_WINDOW_MS,
        default=500,
        help_text="Maximum time that a message with a Hookstation-Producer-Seq waits for earlier "
        "ones.",
    )
    paused = Flag(
        help_text="Accept messages but deliver none. A PUT without it keeps the value.", **KEPT
    )
    sensitive = Flag(
        default=False,
        help_text="Show bodies, headers and responses only with an extra permission, never in "
        "lists.",
    )
    encrypt_bodies = Flag(default=True, help_text="Encrypt new bodies at rest.")
    require_idempotency_key = Flag(
        default=False, help_text="Refuse messages without an Idempotency-Key."
    )
    idempotency_scope = OneOf(
        ["producer", "channel"],
        default="producer",
        help_text="producer: each producer has its own idempotency keys; channel: all share them.",
    )
    max_body_bytes = WholeWithin(
        "max_body_bytes",
        help_text="Maximum bytes of a body, within the installation's limit.",
        **OPTIONAL,
    )
    content_types = Listed(
        Text(255, check=media_range_fault),
        50,
        default=list,
        help_text="Media types or ranges (text/*) that producers may send. An empty list allows "
        "all.",
    )
    idempotency_window_s = Whole(
        1,
        MAX_WINDOW_S,
        help_text="Seconds for which an Idempotency-Key is remembered.",
        **OPTIONAL,
    )
    max_future_days = WholeWithin(
        "max_future_days",
        help_text="Days ahead that messages may be scheduled, within the installation's limit.",
        **OPTIONAL,
    )
    max_waiting_messages = settings.max_waiting_messages()
    max_waiting_bytes = settings.max_waiting_bytes()
    retention_days = Whole(
        1, MAX_DAYS, help_text="Days that finished messages are kept.", **OPTIONAL
    )
    dead_retention_days = Whole(
        1, MAX_DAYS, help_text="Days that dead letters are kept.", **OPTIONAL
    )
    default_retry = RetryPolicy(
        help_text="Retry policy of consumers without their own.", **OPTIONAL
    )
    effective = EffectiveLimitsSerializer(read_only=True, source="*")

    def validate_kind(self, kind: str) -> str:
        """It stays once there are messages: reconciliation and backfills depend on it."""
        channel = self.instance
        if channel is None or not channel.pk or kind == channel.kind:
            return kind
        if Message.objects.filter(channel_id=channel.pk).exists():
            raise ValidationError(f"The channel has messages, so it must stay a {channel.kind}.")
        return kind
