"""Explain in a few sentences what changed when dead letters of a group began."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

TOGETHER = timedelta(minutes=10)
"""Failures that begin within this period count as simultaneous."""
NEAR = timedelta(days=1)
"""Changes older than this are ignored."""
HALF_LIFE = timedelta(days=7)
"""The weight of a group halves in this time without a new dead letter."""
MAX_NAMES = 3
_DONE = {
    "create": "registered",
    "update": "changed",
    "pause": "paused",
    "resume": "resumed",
    "retire": "retired",
    "disable": "disabled",
    "rotate_secret": "rotated the secret of",
    "adopt_secret": "set the secret of",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A change by a person, a key or the broker, from the audit log."""

    at: datetime
    actor: str
    action: str
    """``consumer.update``"""
    target: str
    """``orders/billing``"""
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Before:
    """The consumer's history until it began to fail in this way."""

    arrived_count: int = 0
    since: datetime | None = None
    """Its first known attempt."""
    last_outcome: str = ""
    """Outcome of its last attempt before; empty if there was none."""
    last_status: int | None = None
    last_dead_at: datetime | None = None
    """Its previous dead letter of any group."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the onset of one group."""

    consumer: str
    """Consumer of the first dead letter: ``orders/billing``."""
    began_at: datetime
    """Their first failed attempt."""
    changes: Sequence[Change] = ()
    """Changes of the consumer and its channel shortly before the onset."""
    neighbours: Sequence[tuple[str, datetime]] = ()
    """Other consumers at the same host with dead letters, and when each began to fail."""
    before: Before = Before()


def told(facts: Facts) -> str:
    """Return a few sentences; never empty."""
    parts = (_change(facts), _neighbours(facts), _before(facts))
    return " ".join(part for part in parts if part)


def weight(count: int, age: timedelta) -> float:
    """Return a group's rank: its number, halved for each week since its last dead letter."""
    return float(count * 0.5 ** (max(age, timedelta(0)) / HALF_LIFE))


def span(length: timedelta) -> str:
    """Format a period in one unit."""
    seconds = max(0, round(length.total_seconds()))
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            return _many(seconds // size, unit)
    return _many(seconds, "second")


def _change(facts: Facts) -> str:
    near = [it for it in facts.changes if timedelta(0) <= facts.began_at - it.at <= NEAR]
    if not near:
        return ""
    last = max(near, key=lambda change: change.at)
    verb = last.action.partition(".")[2]
    done = _DONE.get(verb, f"did {verb.replace('_', ' ')} with")
    what = f"{', '.join(last.fields)} of {last.target}" if last.fields else last.target
    ago = span(facts.began_at - last.at)
    more = f"; {_many(len(near) - 1, 'change')} more that day" if len(near) > 1 else ""
    return f"That was {ago} after {last.actor} {done} {what}{more}."


def _neighbours(facts: Facts) -> str:
    same = [name for name, at in facts.neighbours if abs(at - facts.began_at) <= TOGETHER]
    if not same:
        return ""
    names = ", ".join(same[:MAX_NAMES])
    rest = f" and {len(same) - MAX_NAMES} more" if len(same) > MAX_NAMES else ""
    return f"At the same time {names}{rest} began to fail at this host."


def _before(facts: Facts) -> str:
    before = facts.before
    if before.since is None:
        return f"No earlier attempt at {facts.consumer} is known."
    known = span(facts.began_at - before.since)
    if not before.arrived_count:
        return f"{facts.consumer} took nothing in the {known} before that are known."
    text = f"Before, {facts.consumer} took {before.arrived_count:,} in {known}"
    if before.last_dead_at is None:
        text += ", without a dead letter"
    else:
        text += f", with its last dead letter {span(facts.began_at - before.last_dead_at)} before"
    status = f" ({before.last_status})" if before.last_status else ""
    return f"{text}; its last attempt ended in {before.last_outcome.replace('_', ' ')}{status}."


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
