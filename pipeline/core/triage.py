"""Group dead letters by cause: their signature, what changed at their onset, and what to do.

Dead letters share a signature if only the numbers in their responses differ. Executors compute it
for each of them.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

MAX_SHAPE_LENGTH = 250
"""Characters of a response that count, and maximum length of a shape."""
_FOUR_BYTES = 4
"""Bytes of the longest UTF-8 character."""
_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?(?:z|gmt|utc|[+-]\d\d:?\d\d))?"
_HEXES = "[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*"

_VARIABLE = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        # Patterns that contain others come first.
        (r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "<uuid>"),
        (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "<mail>"),
        (
            rf"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,?\s)?(?:\d{{1,2}}[ -]{_MONTH}[ -]\d{{4}}"
            rf"|{_MONTH}\s\d{{1,2}},?\s\d{{4}}|\d{{4}}[-/]\d\d[-/]\d\d)(?:(?:\s|t|,\s){_CLOCK})?",
            "<time>",
        ),
        (r"(?<![\w:])(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}(?![\w:])", "<address>"),
        (rf"(?<![\w:])(?:{_HEXES})?::(?:{_HEXES})?(?![\w:])", "<address>"),
        (r"(?<![\w:])(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}(?![\w:])", "<address>"),
        (r"(?<!\d)\d{1,3}(?:\.\d{1,3}){3}(?!\d)", "<address>"),
        (rf"(?<!\d){_CLOCK}(?!\d)", "<time>"),
        # Ids: long hexadecimal ones, and letters mixed with digits.
        (r"(?<![0-9a-z])[0-9a-f]{8,}(?![0-9a-z])", "#"),
        (r"(?<![0-9a-z])(?=[a-z]*\d)[0-9a-z]{6,}(?![0-9a-z])", "#"),
        (r"\d+(?:[.,]\d+)*", "#"),
    )
)
SIMULTANEOUS = timedelta(minutes=10)
"""Failures that begin within this period count as simultaneous."""
NEAR = timedelta(days=1)
"""Changes older than this are ignored."""
HALF_LIFE = timedelta(days=7)
"""The weight of a group halves in this time without a new dead letter."""
MAX_NAMES = 3
_VERBS = {
    "create": "registered",
    "update": "changed",
    "pause": "paused",
    "resume": "resumed",
    "retire": "retired",
    "disable": "disabled",
    "rotate_secret": "rotated the secret of",
    "adopt_secret": "set the secret of",
}


def response_text(error: str | None, excerpt: bytes | None) -> str:
    """Return an attempt's error as text, or else the beginning of its response."""
    if error:
        return error[:MAX_SHAPE_LENGTH]
    # Cut first, since a response may be much longer.
    beginning = bytes(excerpt or b"")[: _FOUR_BYTES * MAX_SHAPE_LENGTH]
    return beginning.decode("utf-8", "replace")[:MAX_SHAPE_LENGTH]


def shape(text: str) -> str:
    """Replace what differs between responses: ids, addresses, times, numbers."""
    while (simpler := _simpler(text)) != text:
        # Each round leaves fewer characters outside placeholders.
        text = simpler
    return text


def signature(
    outcome: str, status_code: int | None, host: str, shape: str, mac_key: bytes = b""
) -> str:
    """Return 32 hexadecimal digits; with a key, only its owner can find the shape for them."""
    whole = "\0".join((outcome, str(status_code or ""), host, shape))
    return hashlib.blake2s(whole.encode(), digest_size=16, key=mac_key).hexdigest()


class AdviceKind(StrEnum):
    """Who has to act first. Stored and shown."""

    REPLAY = "replay"
    """No action needed: safe to replay once the consumer has recovered."""
    FIX = "fix"
    """The consumer must be fixed: it rejects its messages."""
    CONFIGURE = "configure"
    """The person who registered the consumer, or who runs its network, must act."""
    BROKER = "broker"
    """The broker's operator must act."""
    NEVER = "never"
    """Must not be replayed."""


@dataclass(frozen=True, slots=True)
class Advice:
    """An action to take."""

    kind: AdviceKind
    text: str


_UNREACHABLE = Advice(
    AdviceKind.REPLAY,
    "The host could not be reached. Replay once a test reaches it again; it is safe.",
)
_INTERRUPTED = Advice(
    AdviceKind.BROKER,
    "Workers vanished with these open, again and again. Find out why (memory? the body itself?), "
    "then replay a few.",
)
_BY_OUTCOME = {
    "timeout": Advice(
        AdviceKind.REPLAY,
        "It took too long. Replay once it is quicker, at a rate; the consumer may have taken some "
        "of them all the same. If it needs the time, raise its timeout first.",
    ),
    "connect_timeout": _UNREACHABLE,
    "connection_refused": _UNREACHABLE,
    "connection_reset": _UNREACHABLE,
    "connection_error": _UNREACHABLE,
    "unavailable": Advice(
        AdviceKind.REPLAY, "The host was overloaded or down. Replay once it is healthy; it is safe."
    ),
    "throttled": Advice(
        AdviceKind.REPLAY,
        "It asked for a slower pace. Replay at a rate below its limit, and set one.",
    ),
    "server_error": Advice(
        AdviceKind.REPLAY,
        "It failed inside. Replay a few once it is healthy: if these fail again, the fault is in "
        "what it does with these messages.",
    ),
    "redirect": Advice(
        AdviceKind.CONFIGURE,
        "It has moved, and redirects are not followed. Change the consumer's address to where the "
        "answer points, then replay.",
    ),
    "not_found": Advice(
        AdviceKind.CONFIGURE,
        "Nothing is at this path. Correct the consumer's address, then replay.",
    ),
    "gone": Advice(
        AdviceKind.NEVER, "The consumer wants no more messages. Do not replay: retire it."
    ),
    "client_error": Advice(
        AdviceKind.FIX,
        "It refuses these messages as they are, and would refuse them again. Replay after the "
        "consumer was mended.",
    ),
    "dns_error": Advice(
        AdviceKind.CONFIGURE,
        "Its name has no address. Correct the consumer's address or the name's records, then "
        "replay.",
    ),
    "tls_error": Advice(
        AdviceKind.CONFIGURE,
        "The certificate is not valid for the name, or the handshake failed. Renew the certificate "
        "or correct the consumer's address, then replay.",
    ),
    "protocol_error": Advice(
        AdviceKind.CONFIGURE,
        "What answers there does not speak HTTP. Look at scheme and port of the consumer's "
        "address, then replay.",
    ),
    "blocked_address": Advice(
        AdviceKind.CONFIGURE,
        "The name leads to an address that may not be called. Correct the consumer's address, or "
        "allow its network in HOOKSTATION_ALLOWED_TARGETS; then replay.",
    ),
    "rejected": Advice(
        AdviceKind.FIX,
        "The workers that receive them said that they cannot handle them; the attempts hold why. "
        "Replay after the workers were mended.",
    ),
    "body_unreadable": Advice(
        AdviceKind.BROKER,
        "The stored bodies cannot be opened. Put the key that sealed them back into "
        "HOOKSTATION_ENCRYPTION_KEYS (`manage.py doctor` names it), then replay.",
    ),
    "integrity_error": Advice(
        AdviceKind.NEVER,
        "The stored bodies are not what was accepted: somebody changed them, or the disk did. Find "
        "out who can write to the database. Restore the bodies from a backup before you replay.",
    ),
    "interrupted": _INTERRUPTED,
    "lease_expired": _INTERRUPTED,
    "expired": Advice(
        AdviceKind.NEVER, "Their last instant has passed. They would be cancelled, not sent."
    ),
    "delivered": Advice(
        AdviceKind.FIX,
        "It answered 2xx and never acknowledged. It may have taken them: ask before you replay.",
    ),
}
_BY_STATUS = {
    401: Advice(
        AdviceKind.CONFIGURE,
        "It does not accept the credentials. Correct the consumer's headers or secret, then "
        "replay.",
    ),
    403: Advice(
        AdviceKind.CONFIGURE,
        "It does not let the broker in. Correct the consumer's headers or its list of allowed "
        "addresses, then replay.",
    ),
    408: _BY_OUTCOME["timeout"],
    413: Advice(
        AdviceKind.FIX,
        "The bodies are too large for it. Replay after it takes larger ones; smaller ones come "
        "through now.",
    ),
}
_UNKNOWN = Advice(AdviceKind.FIX, "Look at the sample before anything is sent again.")


def advice(outcome: str, status_code: int | None) -> Advice:
    """Return the advice for this outcome."""
    by_status = _BY_STATUS.get(status_code or 0) if outcome == "client_error" else None
    return by_status or _BY_OUTCOME.get(outcome.removesuffix("_oversized"), _UNKNOWN)


@dataclass(frozen=True, slots=True)
class AuditedChange:
    """A change by a person, a key or the broker, from the audit log."""

    at: datetime
    actor: str
    action: str
    """``consumer.update``"""
    target: str
    """``orders/billing``"""
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
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
class OnsetFacts:
    """Facts about the onset of one group."""

    consumer: str
    """Consumer of the first dead letter: ``orders/billing``."""
    began_at: datetime
    """Their first failed attempt."""
    changes: Sequence[AuditedChange] = ()
    """Changes of the consumer and its channel shortly before the onset."""
    neighbours: Sequence[tuple[str, datetime]] = ()
    """Other consumers at the same host with dead letters, and when each began to fail."""
    before: History = History()


def explain_onset(facts: OnsetFacts) -> str:
    """Return a few sentences; never empty."""
    parts = (_change(facts), _neighbours(facts), _before(facts))
    return " ".join(part for part in parts if part)


def weight(count: int, age: timedelta) -> float:
    """Return a group's rank: its number, halved for each week since its last dead letter."""
    return float(count * 0.5 ** (max(age, timedelta(0)) / HALF_LIFE))


def duration(length: timedelta) -> str:
    """Format a period in one unit."""
    seconds = max(0, round(length.total_seconds()))
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            return _count(seconds // size, unit)
    return _count(seconds, "second")


def _simpler(text: str) -> str:
    text = "".join(char if char.isprintable() else " " for char in text)
    for pattern, name in _VARIABLE:
        text = pattern.sub(name, text)
    return " ".join(text.split())[:MAX_SHAPE_LENGTH].rstrip()


def _change(facts: OnsetFacts) -> str:
    near = [
        change for change in facts.changes if timedelta(0) <= facts.began_at - change.at <= NEAR
    ]
    if not near:
        return ""
    last = max(near, key=lambda change: change.at)
    verb = last.action.partition(".")[2]
    done = _VERBS.get(verb, f"did {verb.replace('_', ' ')} with")
    what = f"{', '.join(last.fields)} of {last.target}" if last.fields else last.target
    ago = duration(facts.began_at - last.at)
    more = f"; {_count(len(near) - 1, 'change')} more that day" if len(near) > 1 else ""
    return f"That was {ago} after {last.actor} {done} {what}{more}."


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _neighbours(facts: OnsetFacts) -> str:
    same = [name for name, at in facts.neighbours if abs(at - facts.began_at) <= SIMULTANEOUS]
    if not same:
        return ""
    names = ", ".join(same[:MAX_NAMES])
    rest = f" and {len(same) - MAX_NAMES} more" if len(same) > MAX_NAMES else ""
    return f"At the same time {names}{rest} began to fail at this host."


def _before(facts: OnsetFacts) -> str:
    before = facts.before
    if before.since is None:
        return f"No earlier attempt at {facts.consumer} is known."
    period = duration(facts.began_at - before.since)
    if not before.arrived_count:
        return f"{facts.consumer} took nothing in the {period} before that are known."
    text = f"Before, {facts.consumer} took {before.arrived_count:,} in {period}"
    if before.last_dead_at is None:
        text += ", without a dead letter"
    else:
        text += (
            f", with its last dead letter {duration(facts.began_at - before.last_dead_at)} before"
        )
    status = f" ({before.last_status})" if before.last_status else ""
    return f"{text}; its last attempt ended in {before.last_outcome.replace('_', ' ')}{status}."
