"""Describe consumers as delivery uses them, their retry overrides, and their status for pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from channels_app.core import backoff, names
from channels_app.core.backoff import RetryRule
from channels_app.core.rate_limits import Rate

CODES = ("healthy", "unsteady", "failing", "untried", "paused", "disabled", "retired")
MAX_KNOWN = 1000
"""Event types per consumer whose retry settings are cached."""
MAX_OVERRIDES = 20
MAX_PATTERNS = 50
"""Per override."""


class ConsumerStatus(NamedTuple):
    """The status as a label shows it."""

    word: str
    tone: str
    """good, bad, wait or calm."""
    code: str
    """The API's value: one of `CODES`."""


def of(
    state: str,
    *,
    is_pull: bool,
    is_open: bool = False,
    is_failing: bool = False,
    ever_succeeded: bool = False,
    ever_failed: bool = False,
) -> ConsumerStatus:
    """The status of a consumer.

    ``state`` is Consumer.State. ``is_open``: its circuit is open. ``is_failing``: its last attempt
    failed. A consumer that has never succeeded is not shown as healthy, even if its circuit is
    closed.
    """
    if state != "active":
        return ConsumerStatus(state, "bad" if state == "disabled" else "wait", state)
    if is_open or (ever_failed and not ever_succeeded):
        return ConsumerStatus("failing", "bad", "failing")
    if is_failing:
        return ConsumerStatus("unsteady", "wait", "unsteady")
    if not ever_succeeded:
        return ConsumerStatus(f"nothing {'received' if is_pull else 'sent'} yet", "calm", "untried")
    return ConsumerStatus("healthy", "good", "healthy")


class RetryOverride(NamedTuple):
    """Retry settings that replace a consumer's own for messages of some event types."""

    event_types: tuple[str, ...]
    rule: RetryRule


@dataclass(frozen=True, slots=True)
class RetryOverrides:
    """Overrides in order; the first one that matches applies."""

    entries: tuple[RetryOverride, ...]
    _rules: dict[str, RetryRule | None] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )
    """Cache by event type: a pump asks at each attempt, and there may be a thousand patterns."""

    def rule(self, event_type: str) -> RetryRule | None:
        """The rule for a message of this event type ('' for none); None: the consumer's own."""
        try:
            return self._rules[event_type]
        except KeyError:
            rules = (
                entry.rule for entry in self.entries if names.matches(entry.event_types, event_type)
            )
            rule = next(rules, None)
            if len(self._rules) >= MAX_KNOWN:
                self._rules.clear()
            self._rules[event_type] = rule
            return rule


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """One consumer as delivery uses it, with the installation's defaults filled in."""

    id: int
    client_id: str
    channel_id: int
    channel_slug: str
    mode: str
    state: str
    halted: bool
    """Paused, disabled, or on a paused channel: its deliveries wait."""
    url: str
    event_types: tuple[str, ...]
    timeout_ms: int
    retry: RetryRule
    """The consumer's own rule; `retry_for` returns the one for a message."""
    rate: Rate | None
    max_in_flight: int
    team_id: int | None
    version: int
    ordering: bool = False
    head_of_line: str = "skip"
    """Whether a dead delivery stops those behind it with the same key: ``block``, or ``skip``."""
    ack: Any = None
    """How it acknowledges later; None if its response is the acknowledgement."""
    encrypt_bodies: bool = False
    """Whether bodies of its channel, and its responses, are stored encrypted."""
    max_pumps: int = 1
    """How many pumps may send to it at the same time."""
    http_version: str = "auto"
    """``1.1`` if it must not be called over HTTP/2."""
    lapsed_leases: str = "free"
    """``charged`` if a lease that ends without an acknowledgement counts as an attempt."""

    dead_letter_channel_id: int | None = None
    """Channel on which the messages of its dead deliveries are published."""
    retry_overrides: RetryOverrides | None = None
    """Rules for some event types instead of ``retry``."""

    @property
    def charges_leases(self) -> bool:
        """Whether each receive counts as an attempt, as in Amazon SQS."""
        return self.mode == "pull" and self.lapsed_leases == "charged"

    @property
    def pump_count(self) -> int:
        """How many pumps share it: few enough for each to get a part of each of its limits."""
        burst = self.rate.burst if self.rate else self.max_pumps
        return max(1, min(self.max_pumps, self.max_in_flight, burst))

    def within(self, max_in_flight: int, burst: int, pumps: int) -> "ConsumerConfig":
        """The same consumer with one pump's share of its limits."""
        rate = self.rate and Rate(self.rate.per_second / pumps, burst)
        return replace(self, max_in_flight=max_in_flight, rate=rate)

    def retry_for(self, event_type: str) -> RetryRule:
        """The retry rule for a message of this event type ('' for none)."""
        overrides = self.retry_overrides
        return (overrides.rule(event_type) if overrides else None) or self.retry

    def wants(self, event_type: str) -> bool:
        """Whether its filter matches this event type."""
        return names.matches(self.event_types, event_type)


@dataclass(frozen=True, slots=True)
class Signer:
    """Decrypted secrets that sign a consumer's requests, and their static headers."""

    v1: tuple[tuple[bytes, datetime | None], ...]
    v1a: tuple[tuple[bytes, datetime | None], ...]
    headers: tuple[tuple[str, str], ...]


def check_overrides(entries: Sequence[Mapping[str, Any]]) -> None:
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


def effective_overrides(
    overrides: Sequence[Mapping[str, Any]], retry: Any, max_attempts: int
) -> list[dict[str, Any]]:
    """Stored overrides with the consumer's settings filled in, and the values derived from them.

    ``retry`` and ``max_attempts`` are the consumer's, with the channel's and the installation's
    defaults filled in.
    """
    effective = []
    for entry in overrides:
        own = entry["retry"] if entry["retry"] is not None else retry
        rule = backoff.resolve_rule(own, entry["max_attempts"] or max_attempts)
        effective.append(
            {
                "event_types": entry["event_types"],
                "retry": own if own is not None else backoff.DEFAULT,
                "max_attempts": rule.max_attempts,
                "gives_up_after_s": backoff.total(*rule),
            }
        )
    return effective


def resolve_overrides(
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
        for entry in effective_overrides(overrides, retry, max_attempts)
    )
    return RetryOverrides(entries)
