"""Delivery's door to the retry arithmetic; it lives where registration checks what it is given."""

from channels_app.rules.backoff import (
    LONGEST_DELAY_S,
    PRESETS,
    Exponential,
    Policy,
    Steps,
    allowed_attempts,
    delay,
    parse_policy,
    total,
)

__all__ = [
    "LONGEST_DELAY_S",
    "PRESETS",
    "Exponential",
    "Policy",
    "Steps",
    "allowed_attempts",
    "delay",
    "parse_policy",
    "total",
]
