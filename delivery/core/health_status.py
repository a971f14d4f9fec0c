"""Decide whether a consumer is healthy, failing or disabled, and which changes to report."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

FAILING_AFTER = timedelta(minutes=10)
FAILING_COUNT = 3
"""This many failures without a success, for long enough, are failing even if the circuit is
closed."""
DISABLE_FAILURES = 20
"""Failures without a success that disabling takes, besides the days: two requests in a week show
little. A message with the default retries has ten attempts."""
CALM = timedelta(minutes=1)
"""Time without a failure after which it has recovered; prevents repeated notifications."""
DEAD_QUIET = timedelta(days=1)
"""Dead letters are reported at most once in this time, while there are any."""
HOT_QUIET = timedelta(hours=1)
"""Hot keys are reported at most once in this time, and again only after there was none."""


class State(StrEnum):
    """The health that was last reported."""

    HEALTHY = "healthy"
    FAILING = "failing"
    """Its circuit is open, or all attempts failed for ten minutes."""
    DISABLED = "disabled"
    """The broker no longer calls it."""


class NotificationKind(StrEnum):
    """What a notification reports."""

    FAILING = "failing"
    DISABLED = "disabled"
    DEAD_LETTER = "dead_letter"
    """The first dead letter, or the first in a day."""
    HOT_KEY = "hot_key"
    """More deliveries wait behind the head of one key than the installation allows (S3-32)."""
    RECOVERED = "recovered"
    LIMIT_NEAR = "limit_near"
    """More than four fifths of a quota are used, or the disk is filling (core/notifications.py)."""
    LIMIT_FULL = "limit_full"
    """Publishing is rejected."""
    LIMIT_OK = "limit_ok"
    """Usage is below the limit again."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a consumer now."""

    state: str
    """Consumer.State."""
    active_since: datetime | None = None
    """When a person or the broker last changed its state; earlier failures do not count."""
    is_open: bool = False
    """Whether its circuit is open."""
    consecutive_failures: int = 0
    failing_since: datetime | None = None
    last_success_at: datetime | None = None
    last_failure_at: datetime | None = None


def judge(current: State, since: datetime, facts: Facts, now: datetime) -> State:
    """Return the health that follows ``current``, which holds since ``since``.

    A consumer that a person paused or retired keeps its health: its owners know.
    """
    if facts.state == "disabled":
        return State.DISABLED
    if facts.state != "active":
        return current
    if _fails(facts, now):
        return State.FAILING
    if current is not State.HEALTHY and _recovered(since, facts, now):
        return State.HEALTHY
    return current


def notification_kind(old: State, new: State) -> NotificationKind | None:
    """Return the notification for a change of health; None if none is needed."""
    if new is old:
        return None
    return {
        State.HEALTHY: NotificationKind.RECOVERED,
        State.FAILING: NotificationKind.FAILING,
        State.DISABLED: NotificationKind.DISABLED,
    }[new]


def _fails(facts: Facts, now: datetime) -> bool:
    if not _after(facts.last_failure_at, facts.active_since):
        return False
    since = facts.failing_since
    lasting = since is not None and now - since >= FAILING_AFTER
    return facts.is_open or (lasting and facts.consecutive_failures >= FAILING_COUNT)


def _recovered(since: datetime, facts: Facts, now: datetime) -> bool:
    calm = facts.last_failure_at is None or now - facts.last_failure_at >= CALM
    sound = facts.failing_since is None and not facts.is_open
    return (
        sound
        and calm
        and facts.last_success_at is not None
        and facts.last_success_at > since
        and _after(facts.last_success_at, facts.active_since)
    )


def _after(instant: datetime | None, mark: datetime | None) -> bool:
    return instant is not None and (mark is None or instant > mark)
