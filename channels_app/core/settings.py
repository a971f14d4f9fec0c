"""Read the settings that channels, consumers and producers share (see core/fields.py)."""

import re
from collections.abc import Mapping
from typing import Any

from channels_app.core import backoff, fields, http
from channels_app.core.fields import Described, Field
from channels_app.core.provider_ids import correlation

MAX_WAITING = 2**53
"""Up to this limit every JSON parser reads an integer exactly."""
MAX_PER_SECOND = 100_000
MAX_ATTEMPTS = 1000
"""The maximum maxReceiveCount of an SQS queue."""
_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,127}/(?:[a-z0-9!#$&^_.+-]{1,127}|\*)")


def media_type(value: str) -> str | None:
    """Return what is wrong with a media type or range; None if it is valid."""
    if _MEDIA_TYPE.fullmatch(value):
        return None
    return "A media type looks like application/json or text/*, in lower case."


def only(value: object, sentence: str) -> Described:
    """Takes only the one value that is implemented today.

    It is better to reject another value than to store and ignore it.
    """

    def read(given: object) -> object:
        if type(given) is not type(value) or given != value:
            raise ValueError(sentence)
        return given

    return Described(read, {"const": value})


def _ack(value: object) -> dict[str, Any]:
    mode = value.get("mode") if isinstance(value, Mapping) else None
    if not isinstance(mode, str) or mode not in _ACKS:
        raise ValueError("An object with mode callback or timer is needed, or null.")
    read: dict[str, Any] = _ACKS[mode](value)
    is_adaptive = read.get("timeout_ms") == ADAPTIVE
    for name, default in _BOUNDS.items():
        if is_adaptive and read[name] is None:
            read[name] = default
        elif not is_adaptive and read.get(name) is not None:
            raise ValueError(f"{name} is only for a timeout_ms of {ADAPTIVE}.")
    if is_adaptive and read["timeout_min_ms"] > read["timeout_max_ms"]:
        raise ValueError("timeout_min_ms is more than timeout_max_ms.")
    # Leave out what is not set.
    return {name: it for name, it in read.items() if it is not None}


def _retry_policy(value: object) -> Any:
    if value is None:
        raise ValueError("A retry policy is a preset's name, a list of seconds or an object.")
    backoff.parse_policy(value)
    return value


def _static_headers(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
        raise ValueError("An object of header names and text values is needed.")
    given = dict(value)
    if fault := http.check_static(given):
        raise ValueError(fault)
    if len({http.canonical(name) for name in given}) < len(given):
        raise ValueError("A header occurs twice.")
    return given


def _timeout_ms(value: object) -> int | str:
    return ADAPTIVE if value == ADAPTIVE else _ACK_MS(value)


ADAPTIVE = "adaptive"
"""A timeout that follows the recent duration of acknowledgements."""
_BOUNDS = {"timeout_min_ms": 100, "timeout_max_ms": 60_000}
_ACK_MS = fields.whole(10, 86_400_000)
_WAIT = Described(_timeout_ms, {"anyOf": [_ACK_MS.schema, {"const": ADAPTIVE}]})
_ACKS = {
    "callback": fields.nested(
        {
            "mode": Field(fields.choice("callback"), required=True),
            "timeout_ms": Field(_WAIT, default=60_000),
            "timeout_min_ms": Field(
                fields.nullable(_ACK_MS), help="Shortest adaptive timeout; default 100."
            ),
            "timeout_max_ms": Field(
                fields.nullable(_ACK_MS),
                help="Longest adaptive timeout, and the first one; default 60,000.",
            ),
            "on_timeout": Field(fields.choice("proceed", "retry", "dead"), default="retry"),
            "correlation": Field(
                correlation, help="How a provider's own callbacks are matched with deliveries."
            ),
        },
        "CallbackAck",
    ),
    "timer": fields.nested(
        {
            "mode": Field(fields.choice("timer"), required=True),
            "delay_ms": Field(_ACK_MS, required=True),
        },
        "TimerAck",
    ),
}
ack = fields.nullable(Described(_ack, {"oneOf": [one.schema for one in _ACKS.values()]}))
"""How a consumer acknowledges later; null: its response is the acknowledgement."""

_SECONDS = {"type": "number", "minimum": 0, "maximum": backoff.MAX_DELAY_S}

description = Field(fields.text(2000, lines=True), default="", help="For people.")
_WAITING = fields.nullable(fields.whole(1, MAX_WAITING))
max_waiting_messages = Field(_WAITING, help="Messages that may wait; more are refused (429).")
max_waiting_bytes = Field(_WAITING, help="Bytes of the bodies that may wait.")
rate_limit = fields.nullable(
    fields.nested(
        {
            "per_second": Field(fields.number(0.001, MAX_PER_SECOND), required=True),
            "burst": Field(fields.whole(1, MAX_PER_SECOND), default=1),
        },
        "RateLimit",
    )
)
max_attempts = fields.nullable(fields.whole(1, MAX_ATTEMPTS))
"""Failures until a delivery is dead; null: the default."""
retry_policy = Described(
    _retry_policy,
    {
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
    },
)
"""A retry policy, stored as it was written."""
static_headers = Described(
    _static_headers,
    {
        "type": "object",
        "maxProperties": http.MAX_HEADERS,
        "additionalProperties": {"type": "string", "maxLength": http.MAX_VALUE_LENGTH},
    },
)
"""A consumer's static headers, which may contain credentials."""
