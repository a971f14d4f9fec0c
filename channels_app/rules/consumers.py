"""Consumers as delivery uses them: settings resolved, and what their requests carry."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from channels_app.rules import filters
from channels_app.rules.backoff import RetryRule
from channels_app.rules.limits import Rate

MAX_KNOWN = 1000
"""Event types of which a consumer's retry settings are remembered."""


class RetryOverride(NamedTuple):
    """What holds instead of a consumer's own retry settings, for messages of some event types."""

    event_types: tuple[str, ...]
    rule: RetryRule


@dataclass(frozen=True, slots=True)
class RetryOverrides:
    """In order: the first one that matches holds."""

    entries: tuple[RetryOverride, ...]
    _known: dict[str, RetryRule | None] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )
    """By event type: a pump asks for each attempt, and there may be a thousand patterns."""

    def rule(self, event_type: str) -> RetryRule | None:
        """What holds for a message of this event type ('' for none); None: the consumer's own."""
        try:
            return self._known[event_type]
        except KeyError:
            found = (it.rule for it in self.entries if filters.matches(it.event_types, event_type))
            rule = next(found, None)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[event_type] = rule
            return rule


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """One consumer as delivery uses it: settings resolved against the installation's."""

    id: int
    client_id: str
    channel_id: int
    channel_slug: str
    mode: str
    state: str
    halted: bool
    """Paused, disabled, or on a paused channel: its rows wait."""
    url: str
    event_types: tuple[str, ...]
    timeout_ms: int
    retry: RetryRule
    """Its own; `retry_for` says what holds for a message."""
    rate: Rate | None
    max_in_flight: int
    team_id: int | None
    version: int
    ordering: bool = False
    head_of_line: str = "skip"
    """What a dead delivery means to those behind it: ``skip`` lets them go, ``block`` does not."""
    ack: Any = None
    """How it acknowledges, where its answer alone does not."""
    encrypt_bodies: bool = False
    """Whether its channel's bodies are sealed at rest, and its answers with them."""
    max_pumps: int = 1
    """How many pumps may send to it at the same time."""
    lapsed_leases: str = "free"
    """Whether a lease that ends without an acknowledgement is an attempt: ``charged``."""

    dead_letter_channel_id: int | None = None
    """Where the messages of its dead deliveries are published."""
    retry_overrides: RetryOverrides | None = None
    """What holds for some event types instead of ``retry``."""

    @property
    def charges_leases(self) -> bool:
        """Whether each receive counts as an attempt, as in Amazon SQS."""
        return self.mode == "pull" and self.lapsed_leases == "charged"

    @property
    def pump_count(self) -> int:
        """How many pumps share it: no more than each can have a part of each of its limits."""
        burst = self.rate.burst if self.rate else self.max_pumps
        return max(1, min(self.max_pumps, self.max_in_flight, burst))

    def within(self, max_in_flight: int, burst: int, pumps: int) -> "ConsumerConfig":
        """The same as one of several pumps sees it: with that pump's part of the limits."""
        rate = self.rate and Rate(self.rate.per_second / pumps, burst)
        return replace(self, max_in_flight=max_in_flight, rate=rate)

    def retry_for(self, event_type: str) -> RetryRule:
        """The retry settings that hold for a message of this event type ('' for none)."""
        overrides = self.retry_overrides
        return (overrides.rule(event_type) if overrides else None) or self.retry

    def wants(self, event_type: str) -> bool:
        """Whether its filter lets this event type through."""
        return filters.matches(self.event_types, event_type)


@dataclass(frozen=True, slots=True)
class Signer:
    """What a consumer's requests carry: opened secrets and static headers."""

    v1: tuple[tuple[bytes, datetime | None], ...]
    v1a: tuple[tuple[bytes, datetime | None], ...]
    headers: tuple[tuple[str, str], ...]
