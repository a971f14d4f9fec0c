"""The headers of one attempt: people's first, the broker's over them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from urllib.parse import quote

from channels_app.rules.headers import canonical, is_brokers_own

_UNSAFE = re.compile(r"[^\x20-\x7e]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """All that the headers of one attempt say."""

    message_id: str
    """The public id: the same for every attempt, the consumer's idempotency key."""
    timestamp: int
    """Unix seconds of this attempt, as signed."""
    signature: str
    """Tokens of rules/signing.py, one space between them."""
    content_type: str = ""
    """The producer's; without one none is made up."""
    channel: str
    consumer: str
    event_type: str = ""
    priority: int
    attempt: int
    """1 for the first try within the current budget."""
    max_attempts: int
    accepted_at: datetime
    user_agent: str
    ordering_key: str = ""
    replay: bool = False
    """A person asked for this delivery again."""
    test: bool = False
    """A sample, not a message."""
    forwarded: Mapping[str, str] = field(default_factory=dict)
    """The producer's, checked by rules/headers.py when they were accepted."""
    static: Mapping[str, str] = field(default_factory=dict)
    """The consumer's own, checked by the same rules."""


def build(envelope: Envelope) -> list[tuple[str, str]]:
    """The headers to send: the consumer's replace the producer's, the broker's replace both.

    People's headers with a name of the broker's are left out even where the broker says nothing,
    so that nobody can claim a replay that was none.
    """
    people: dict[str, tuple[str, str]] = {}
    for name, value in chain(envelope.forwarded.items(), envelope.static.items()):
        if not is_brokers_own(name):
            # Popped, so that what replaces another stands where its layer stands.
            people.pop(canonical(name), None)
            people[canonical(name)] = (name, value)
    return [*people.values(), *_brokers(envelope)]


def _brokers(envelope: Envelope) -> Iterable[tuple[str, str]]:
    headers = {
        "Content-Type": envelope.content_type,
        "User-Agent": envelope.user_agent,
        "webhook-id": envelope.message_id,
        "webhook-timestamp": str(envelope.timestamp),
        "webhook-signature": envelope.signature,
        "Hookstation-Channel": envelope.channel,
        "Hookstation-Consumer": envelope.consumer,
        "Hookstation-Event-Type": envelope.event_type,
        "Hookstation-Priority": str(envelope.priority),
        "Hookstation-Attempt": str(envelope.attempt),
        "Hookstation-Max-Attempts": str(envelope.max_attempts),
        "Hookstation-Accepted-At": _rfc3339(envelope.accepted_at),
        "Hookstation-Ordering-Key": envelope.ordering_key,
        "Hookstation-Replay": "true" if envelope.replay else "",
        "Hookstation-Test": "true" if envelope.test else "",
    }
    return [(name, _visible(value)) for name, value in headers.items() if value]


def _rfc3339(instant: datetime) -> str:
    text = instant.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _visible(value: str) -> str:
    if value.isascii() and value.isprintable():
        return value
    # Ordering keys and content types may hold any text; a line break in one must stay inside it.
    return _UNSAFE.sub(lambda found: quote(found[0]), value)
