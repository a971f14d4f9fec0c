"""Resolve retry overrides: retry settings for some event types of a consumer."""

from collections.abc import Mapping, Sequence
from typing import Any

from channels_app.core import backoff, names
from channels_app.core.backoff import RetryRule
from channels_app.core.consumer_config import RetryOverride, RetryOverrides

MAX_OVERRIDES = 20
MAX_PATTERNS = 50
"""Per override."""


def check_order(entries: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError for an entry that can never apply."""
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
