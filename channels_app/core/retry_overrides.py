"""Validate and resolve retry overrides: retry settings for some event types of a consumer."""

from collections.abc import Mapping, Sequence
from typing import Any

from channels_app.core import backoff, fields, names, settings
from channels_app.core.backoff import RetryRule
from channels_app.core.consumer_config import RetryOverride, RetryOverrides
from channels_app.core.fields import Described, Field

MAX_OVERRIDES = 20
MAX_PATTERNS = 50
"""Per override."""
_PATTERNS = fields.listed(fields.text(200, check=names.validate_pattern), MAX_PATTERNS)


def _patterns(value: object) -> list[str]:
    patterns: list[str] = _PATTERNS(value)
    if not patterns:
        raise ValueError("At least one name or pattern is needed; * is for all.")
    return patterns


_ENTRY = fields.nested(
    {
        "event_types": Field(
            Described(_patterns, {**_PATTERNS.schema, "minItems": 1}),
            required=True,
            help="Names and patterns like order.*, as in the consumer's event_types.",
        ),
        "retry": Field(
            fields.nullable(settings.retry_policy), help="A retry policy; null: the consumer's."
        ),
        "max_attempts": Field(
            settings.max_attempts, help="Failures until a delivery is dead; null: the consumer's."
        ),
    },
    "RetryOverride",
)


def _override(value: object) -> dict[str, Any]:
    entry: dict[str, Any] = _ENTRY(value)
    if entry["retry"] is None and entry["max_attempts"] is None:
        raise ValueError("Give retry, max_attempts or both; without them it overrides nothing.")
    return entry


_LISTED = fields.listed(Described(_override, _ENTRY.schema), MAX_OVERRIDES)


def _retry_overrides(value: object) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = _LISTED(value)
    earlier: list[tuple[int, str]] = []
    for number, entry in enumerate(entries, 1):
        for pattern in entry["event_types"]:
            for place, covering in earlier:
                if names.covers(covering, pattern):
                    raise ValueError(
                        f"Entry {number}: {covering} of entry {place} matches {pattern} first. "
                        "Put the narrower entry before it."
                    )
        earlier += [(number, pattern) for pattern in entry["event_types"]]
    return entries


retry_overrides = Described(_retry_overrides, _LISTED.schema)
"""An ordered list; the first entry that matches a message's event type applies. A list with an
entry that can never apply is rejected."""


def effective(
    overrides: Sequence[Mapping[str, Any]], retry: Any, max_attempts: int
) -> list[dict[str, Any]]:
    """Stored overrides with the consumer's settings filled in, and the values derived from them.

    ``retry`` and ``max_attempts`` are the consumer's, with the channel's and the installation's
    defaults filled in.
    """
    found = []
    for entry in overrides:
        own = entry["retry"] if entry["retry"] is not None else retry
        rule = backoff.resolve_rule(own, entry["max_attempts"] or max_attempts)
        found.append(
            {
                "event_types": entry["event_types"],
                "retry": own if own is not None else backoff.DEFAULT,
                "max_attempts": rule.max_attempts,
                "gives_up_after_s": backoff.total(*rule),
            }
        )
    return found


def resolved(
    overrides: Sequence[Mapping[str, Any]], retry: Any, max_attempts: int
) -> RetryOverrides | None:
    """The overrides in the form that delivery uses; None if there are none."""
    if not overrides:
        return None
    entries = tuple(
        RetryOverride(
            tuple(entry["event_types"]),
            RetryRule(backoff.parse_policy(entry["retry"]), entry["max_attempts"]),
        )
        for entry in effective(overrides, retry, max_attempts)
    )
    return RetryOverrides(entries)
