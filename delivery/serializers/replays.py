"""Describe replays and backfills: their previews and progress."""

from channels_app.core import ids
from channels_app.serializers.base import ResponseSerializer
from channels_app.serializers.fields import (
    Flag,
    Instant,
    JsonValue,
    Listed,
    Number,
    OneOf,
    Text,
    Whole,
)
from delivery.models import Replay
from delivery.serializers.base import AddressField, PublicId
from delivery.serializers.deliveries import DeliverySerializer
from delivery.serializers.messages import MessageSerializer

FILTER_SCHEMA = {"$ref": "#/components/schemas/ReplayFilter"}


class ReplaySerializer(ResponseSerializer):
    """A replay or backfill with its progress."""

    id = PublicId(ids.REPLAY)
    kind = OneOf(["replay", "backfill"])
    state = OneOf(Replay.State.values)
    filter = JsonValue(None, FILTER_SCHEMA, source="conditions")
    matched_count = Whole(
        source="total_count", help_text="Deliveries or messages that matched when it was created."
    )
    replayed_count = Whole(help_text="Deliveries queued so far.")
    rate_per_second = Number(allow_null=True)
    reason = Text()
    requested_by = Text()
    created_at = Instant()
    finished_at = Instant(allow_null=True)
    url = AddressField(lambda row: f"replays/{row}")


class _PreviewSerializer(ResponseSerializer):
    """What a dry run found."""

    dry_run = Flag()
    filter = JsonValue(None, FILTER_SCHEMA)
    matched_count = Whole()
    exact = Flag(
        help_text="False if there was too much to count: then `matched_count` is a minimum or "
        "estimate."
    )


class ReplayPreviewSerializer(_PreviewSerializer):
    """A replay that was not created."""

    sample = Listed(DeliverySerializer(), 10)


class BackfillPreviewSerializer(_PreviewSerializer):
    """A backfill that was not created."""

    sample = Listed(MessageSerializer(), 10)
