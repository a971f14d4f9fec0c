"""Whether a consumer counts as healthy, failing or disabled, and whom to notify."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

FAILING_AFTER = timedelta(minutes=10)
FAILING_COUNT = 3
"""Nothing but failure for so long and so often is failing, also where the circuit needs more."""
CALM = timedelta(minutes=1)
"""Without a failure for so long it has recovered: one that wavers is told of once."""
DEAD_QUIET = timedelta(days=1)
"""Dead letters are told of once a day at most, for as long as there are some."""
HOT_QUIET = timedelta(hours=1)
"""Hot keys are told of once an hour at most, and not again before there was none."""


class State(StrEnum):
    """What people were told last."""

    HEALTHY = "healthy"
    FAILING = "failing"
    """Its circuit is open, or all failed for ten minutes."""
    DISABLED = "disabled"
    """The broker calls it no more."""


class Kind(StrEnum):
    """What a notice says."""

    FAILING = "failing"
    DISABLED = "disabled"
    DEAD_LETTER = "dead_letter"
    """The first one since there was none, or since a day ago."""
    HOT_KEY = "hot_key"
    """More waits behind the head of one ordering key than the installation allows (S3-32)."""
    RECOVERED = "recovered"
    LIMIT_NEAR = "limit_near"
    """More than four fifths of a quota are used, or the disk fills (rules/quotas.py)."""
    LIMIT_FULL = "limit_full"
    """Publishing is refused."""
    LIMIT_OK = "limit_ok"
    """There is room again."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a consumer now."""

    state: str
    """Consumer.State."""
    active_since: datetime | None = None
    """When a person or the broker last switched it; what was learnt before does not count."""
    is_open: bool = False
    """Its circuit."""
    consecutive_failures: int = 0
    failing_since: datetime | None = None
    last_success_at: datetime | None = None
    last_failure_at: datetime | None = None


def judge(known: State, since: datetime, facts: Facts, now: datetime) -> State:
    """The standing that follows on ``known``, which holds from ``since`` on.

    A consumer that a person paused or removed keeps its standing: its owners know.
    """
    if facts.state == "disabled":
        return State.DISABLED
    if facts.state != "active":
        return known
    if _fails(facts, now):
        return State.FAILING
    if known is not State.HEALTHY and _recovered(since, facts, now):
        return State.HEALTHY
    return known


def told(known: State, new: State) -> Kind | None:
    """The notice that a change of standing calls for."""
    if new is known:
        return None
    return {
        State.HEALTHY: Kind.RECOVERED,
        State.FAILING: Kind.FAILING,
        State.DISABLED: Kind.DISABLED,
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
