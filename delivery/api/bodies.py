"""Read the bodies of requests. Their serializers are made once, since that takes a millisecond."""

from datetime import datetime, timedelta
from typing import Any

from rest_framework.request import Request

from channels_app.api.base import json_object
from channels_app.core.errors import Invalid
from channels_app.ingest.body import Sender
from delivery.serializers import pull, requests
from delivery.serializers.base import RequestSerializer

REPAIR = requests.RepairSerializer()
SKIP = requests.SkipSerializer()
REPLAY = requests.ReplayRequestSerializer()
BACKFILL = requests.BackfillRequestSerializer()
CALLBACK = requests.CallbackSerializer()
RESCHEDULE = requests.RescheduleSerializer()
MANY = requests.ManySerializer()
MOVE_ITEM = requests.MoveManyItemSerializer()
CANCEL_ITEM = requests.CancelManyItemSerializer()
ACK = pull.AcknowledgementSerializer()
NACK = pull.NegativeAcknowledgementSerializer()
EXTEND = pull.LeaseExtensionSerializer()
RELEASE = pull.LeaseReleaseSerializer()


def read(
    request: Request,
    serializer: RequestSerializer,
    *,
    optional: bool = False,
    sender: Sender | None = None,
) -> dict[str, Any]:
    """Parse and check the body. Raises BrokerError and Invalid."""
    return serializer.read(json_object(request, optional=optional, sender=sender))


def move_of(values: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Convert the fields of a move to arguments: a delay counts from now. Raises Invalid."""
    delay_ms = values.pop("delay_ms", None)
    if delay_ms is not None:
        if "due_at" in values:
            raise Invalid(
                "invalid_fields", "Give an instant or a delay, not both.", field="delay_ms"
            )
        values["due_at"] = now + timedelta(milliseconds=delay_ms)
    if not values:
        raise Invalid("invalid_fields", "Send a priority, a time (due_at or delay_ms), or both.")
    return values
