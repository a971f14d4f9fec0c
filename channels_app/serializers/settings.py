"""Define the settings that channels, consumers, producers and teams share."""

from typing import Any

from channels_app.core import backoff
from channels_app.serializers.base import StrictSerializer
from channels_app.serializers.fields import OPTIONAL, JsonValue, Number, Whole

MAX_WAITING = 2**53
"""Up to this limit every JSON parser reads an integer exactly."""
MAX_PER_SECOND = 100_000
MAX_ATTEMPTS = 1000
"""The maximum maxReceiveCount of an SQS queue."""
_SECONDS = {"type": "number", "minimum": 0, "maximum": backoff.MAX_DELAY_S}
_RETRY_POLICY = {
    "oneOf": [
        {"title": "RetryPreset", "type": "string", "enum": list(backoff.PRESETS)},
        {"type": "array", "items": _SECONDS, "minItems": 1, "maxItems": backoff.MAX_DELAYS},
        {
            "title": "RetryBackoff",
            "type": "object",
            "properties": {
                "base": _SECONDS,
                "factor": {"type": "number", "minimum": 1, "maximum": 100},
                "cap": _SECONDS,
            },
            "required": ["base", "factor", "cap"],
            "additionalProperties": False,
        },
    ]
}


def max_waiting(what: str) -> Whole:
    """A quota of what waits for its delivery."""
    return Whole(1, MAX_WAITING, help_text=what, **OPTIONAL)


def max_waiting_messages() -> Whole:
    """The quota of messages."""
    return max_waiting("Messages that may wait; more are refused (429).")


def max_waiting_bytes() -> Whole:
    """The quota of bytes."""
    return max_waiting("Bytes of the bodies that may wait.")


class RateLimitSerializer(StrictSerializer):
    """The columns ``rate_per_second`` and ``rate_burst`` of a row; null: no limit."""

    per_second = Number(0.001, MAX_PER_SECOND, source="rate_per_second")
    burst = Whole(1, MAX_PER_SECOND, source="rate_burst", default=1)

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"source": "*", **OPTIONAL, **options})

    def get_default(self) -> Any:
        """The columns, as for a null that was sent."""
        return self.to_internal_value(super().get_default())

    def to_internal_value(self, data: Any) -> Any:
        """The columns."""
        return {"rate_per_second": None} if data is None else super().to_internal_value(data)

    def to_representation(self, instance: Any) -> Any:
        """The limit; None if there is none."""
        return super().to_representation(instance) if instance.rate_per_second else None


class RetryPolicy(JsonValue):
    """A retry policy, stored as it was written."""

    default_error_messages = {
        "invalid": "A retry policy is a preset's name, a list of seconds or an object."
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(backoff.parse_policy, _RETRY_POLICY, **options)
