"""Describe API keys and their rotation."""

from datetime import datetime
from typing import Any

from channels_app.core import keys, times
from channels_app.database import clock
from channels_app.serializers.base import ResourceSerializer, StrictSerializer
from channels_app.serializers.fields import (
    OPTIONAL,
    Flag,
    Instant,
    Listed,
    OneOf,
    Slug,
    Text,
    Whole,
)

DEFAULT_OVERLAP_S = 86_400
MAX_OVERLAP_S = 30 * 86_400
MAX_GRANTS = 200


class Expiry(Instant):
    """A future instant."""

    def to_internal_value(self, data: Any) -> datetime:
        """The instant, rounded up to a millisecond."""
        return self.checked(_future, data)


class KeySerializer(ResourceSerializer):
    """A key, without its text."""

    key_id = Text(read_only=True)
    producer = Text(read_only=True, allow_null=True, source="producer.slug")
    label = Text(200, default="", help_text="For people.")  # type: ignore[assignment]  # fields leave the class, so `label` stays the framework's
    scopes = Listed(
        OneOf(keys.SCOPES),
        len(keys.SCOPES),
        default=lambda: ["publish"],
        help_text="What the key may do; admin implies the others.",
    )
    channels = Listed(
        Slug(),
        MAX_GRANTS,
        default=list,
        help_text="Channels that it may use. A team's key without any may use the external ones.",
    )
    all_channels = Flag(
        default=False,
        source="reaches_all",
        help_text="Every channel, including future ones. An admin key needs it.",
    )
    expires_at = Expiry(help_text="When it stops working.", **OPTIONAL)
    sigv4 = Flag(
        default=False,
        source="has_sigv4",
        help_text="Also create a key pair for AWS Signature Version 4, which SQS clients use.",
    )
    revoked_at = Instant(read_only=True, allow_null=True)
    last_used_at = Instant(read_only=True, allow_null=True)


class KeyWithTextSerializer(KeySerializer):
    """A new key with its secrets, from the context."""

    shown_last = (
        *KeySerializer.shown_last,
        *("key", "aws_access_key_id", "aws_secret_access_key"),
    )

    key = Text(from_context=True, read_only=True, help_text="hsk_..., shown once.")
    aws_access_key_id = Text(
        from_context=True,
        read_only=True,
        allow_null=True,
        source="access_key_id",
        help_text="For SQS clients; null for a key without sigv4.",
    )
    aws_secret_access_key = Text(
        from_context=True,
        read_only=True,
        allow_null=True,
        source="secret_access_key",
        help_text="Signs requests of SQS clients (AWS Signature Version 4); shown once.",
    )


class OverlapSerializer(StrictSerializer):
    """For how many seconds what is replaced keeps working; 0 ends it at once."""

    overlap_s = Whole(0, MAX_OVERLAP_S, default=DEFAULT_OVERLAP_S)


def _future(value: object) -> datetime:
    now = clock.now()
    expires_at = times.soon(value, now)
    if expires_at <= now:
        raise ValueError("The expiry must be in the future.")
    return expires_at
