"""Describe how a consumer acknowledges later: by a callback, possibly a provider's, or a timer."""

from typing import Any

from rest_framework import serializers
from rest_framework.serializers import ValidationError

from channels_app.core import json_paths, provider_ids, values
from channels_app.serializers.base import StrictSerializer
from channels_app.serializers.fields import OPTIONAL, Listed, OneOf, Schema, Strict, Text, Whole

ADAPTIVE = "adaptive"
"""A timeout that follows the recent duration of acknowledgements."""
_BOUNDS = {"timeout_min_ms": 100, "timeout_max_ms": 60_000}
_MAX_STATUSES = 20


def _empty_fault(text: str) -> str | None:
    return None if text else "It must not be empty."


def _filled(most: int, **options: Any) -> Text:
    return Text(most, check=_empty_fault, schema={"minLength": 1}, **options)


class CallbackSignatureSerializer(StrictSerializer):
    """How a provider signs its callbacks."""

    preset = OneOf([provider_ids.META])
    secret = _filled(
        500, help_text=f"Stored encrypted, shown as {values.MASK}; sending that keeps it."
    )


def _path(what: str) -> Text:
    return Text(
        json_paths.MAX_LENGTH,
        check=json_paths.check,
        schema={"pattern": json_paths.PATTERN},
        help_text=what,
        **OPTIONAL,
    )


def _statuses(what: str) -> Listed:
    return Listed(_filled(100), _MAX_STATUSES, help_text=what, **OPTIONAL)


class CorrelationSerializer(StrictSerializer):
    """Where a provider's id is found; stored with the preset's values filled in."""

    preset = OneOf(
        provider_ids.PRESETS, help_text="Provider that supplies omitted fields.", **OPTIONAL
    )
    response_id = _path("Path of the provider's id in a response.")
    callback = _path(
        "Path of the reports in a callback's body; null: the whole body is one report."
    )
    callback_id = _path("Path of the provider's id in a report.")
    callback_status = _path("Path of the status in a report.")
    accept = _statuses("Statuses that mean success.")
    fail = _statuses("Statuses that mean failure; others are ignored.")  # type: ignore[assignment]  # fields leave the class, so `fail` stays the framework's
    signature = CallbackSignatureSerializer(
        help_text="How callbacks are signed; null: the inbound address is the only credential.",
        **OPTIONAL,
    )
    verify_token = Text(
        200,
        help_text="Token that a provider's verification request must send (hub.verify_token); "
        "null: none.",
        **OPTIONAL,
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Fill in the preset."""
        try:
            return provider_ids.completed(attrs)
        except ValueError as error:
            raise ValidationError(str(error)) from None


class Timeout(Whole):
    """Milliseconds, or adaptive."""

    def to_internal_value(self, data: Any) -> Any:
        """The number, or the word."""
        return ADAPTIVE if data == ADAPTIVE else super().to_internal_value(data)

    def schema_of_value(self, shown: bool) -> Schema:
        """Either."""
        return {"anyOf": [super().schema_of_value(shown), {"const": ADAPTIVE}]}


def _milliseconds(**options: Any) -> Whole:
    return Whole(10, 86_400_000, **options)


class CallbackAckSerializer(StrictSerializer):
    """The consumer or its provider calls back."""

    mode = OneOf(["callback"])
    timeout_ms = Timeout(10, 86_400_000, default=60_000)
    timeout_min_ms = _milliseconds(help_text="Shortest adaptive timeout; default 100.", **OPTIONAL)
    timeout_max_ms = _milliseconds(
        help_text="Longest adaptive timeout, and the first one; default 60,000.", **OPTIONAL
    )
    on_timeout = OneOf(["proceed", "retry", "dead"], default="retry")
    correlation = CorrelationSerializer(
        help_text="How a provider's own callbacks are matched with deliveries.", **OPTIONAL
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Bounds belong to an adaptive timeout."""
        is_adaptive = attrs["timeout_ms"] == ADAPTIVE
        for name, default in _BOUNDS.items():
            if is_adaptive and attrs[name] is None:
                attrs[name] = default
            elif not is_adaptive and attrs[name] is not None:
                raise ValidationError(f"{name} is only for a timeout_ms of {ADAPTIVE}.")
        if is_adaptive and attrs["timeout_min_ms"] > attrs["timeout_max_ms"]:
            raise ValidationError("timeout_min_ms is more than timeout_max_ms.")
        return attrs


class TimerAckSerializer(StrictSerializer):
    """Time acknowledges, after a 2xx response."""

    mode = OneOf(["timer"])
    delay_ms = _milliseconds()


_MODES: dict[str, type[StrictSerializer]] = {
    "callback": CallbackAckSerializer,
    "timer": TimerAckSerializer,
}


class Ack(Strict, serializers.JSONField):
    """One of both; null: the response is the acknowledgement."""

    default_error_messages = {
        "invalid": "An object with mode callback or timer is needed, or null."
    }

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """The object without what is not set."""
        mode = data.get("mode") if isinstance(data, dict) else None
        serializer = _MODES.get(mode) if isinstance(mode, str) else None
        if serializer is None:
            return dict(self.fail("invalid"))
        checked = serializer().run_validation(data)
        return {name: value for name, value in checked.items() if value is not None}

    def schema_of_value(self, shown: bool) -> Schema:
        """Either."""
        return {"oneOf": [serializer().json_schema() for serializer in _MODES.values()]}
