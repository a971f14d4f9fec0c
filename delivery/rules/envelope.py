"""The headers of one attempt: people's first, the broker's over them."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote

from channels_app.rules.headers import canonical, is_brokers_own
from delivery.rules import dead_letters

_UNSAFE = re.compile(r"[^\x20-\x7e]")
_NONE: Mapping[str, str] = MappingProxyType({})


class Envelope(NamedTuple):
    """All that the headers of one attempt say. One is made for every attempt: see send/call.py."""

    message_id: str
    """The public id: the same for every attempt, the consumer's idempotency key."""
    timestamp: int
    """Unix seconds of this attempt, as signed."""
    signature: str
    """Tokens of rules/signing.py, one space between them."""
    channel: str
    consumer: str
    priority: int
    attempt: int
    """1 for the first try within the current budget."""
    max_attempts: int
    accepted_at: datetime
    user_agent: str
    content_type: str = ""
    """The producer's; without one none is made up."""
    event_type: str = ""
    ordering_key: str = ""
    ack_url: str = ""
    """Where the consumer acknowledges it later."""
    replay: bool = False
    """A person asked for this delivery again."""
    test: bool = False
    """A sample, not a message."""
    forwarded: Mapping[str, str] = _NONE
    """The producer's, checked by rules/headers.py when they were accepted."""
    static: Mapping[str, str] = _NONE
    """The consumer's own, checked by the same rules."""


def build(envelope: Envelope) -> list[tuple[str, str]]:
    """The headers to send: the consumer's replace the producer's, the broker's replace both.

    People's headers with a name of the broker's are left out even where the broker says nothing,
    so that nobody can claim a replay that was none.
    """
    headers = _people(envelope) if envelope.forwarded or envelope.static else []
    if envelope.content_type:
        headers.append(("Content-Type", _visible(envelope.content_type)))
    headers += (
        ("User-Agent", _visible(envelope.user_agent)),
        ("webhook-id", envelope.message_id),
        ("webhook-timestamp", str(envelope.timestamp)),
        ("webhook-signature", envelope.signature),
        ("Hookstation-Channel", _visible(envelope.channel)),
        ("Hookstation-Consumer", _visible(envelope.consumer)),
    )
    if envelope.event_type:
        headers.append(("Hookstation-Event-Type", _visible(envelope.event_type)))
    headers += (
        ("Hookstation-Priority", str(envelope.priority)),
        ("Hookstation-Attempt", str(envelope.attempt)),
        ("Hookstation-Max-Attempts", str(envelope.max_attempts)),
        ("Hookstation-Accepted-At", _rfc3339(envelope.accepted_at)),
    )
    if envelope.ordering_key:
        headers.append(("Hookstation-Ordering-Key", _visible(envelope.ordering_key)))
    if envelope.ack_url:
        headers.append(("Hookstation-Ack-Url", envelope.ack_url))
    if envelope.replay:
        headers.append(("Hookstation-Replay", "true"))
    if envelope.test:
        headers.append(("Hookstation-Test", "true"))
    return headers


def _people(envelope: Envelope) -> list[tuple[str, str]]:
    people: dict[str, tuple[str, str]] = {}
    for name, value in chain(envelope.forwarded.items(), envelope.static.items()):
        # Only the broker writes those that begin so, into messages on dead-letter channels.
        if not is_brokers_own(name) or name.startswith(dead_letters.PREFIX):
            # Popped, so that what replaces another stands where its layer stands.
            people.pop(canonical(name), None)
            people[canonical(name)] = (name, value)
    return [*people.values()]


def _rfc3339(instant: datetime) -> str:
    utc = instant if instant.tzinfo is UTC else instant.astimezone(UTC)
    return f"{utc.isoformat(timespec='milliseconds')[:-6]}Z"


# The same few values come again and again.
@lru_cache(maxsize=4096)
def _visible(value: str) -> str:
    if value.isascii() and value.isprintable():
        return value
    # Ordering keys and content types may hold any text; a line break in one must stay inside it.
    return _UNSAFE.sub(lambda found: quote(found[0]), value)
