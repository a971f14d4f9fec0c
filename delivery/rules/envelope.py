"""Build the headers of one attempt; the broker's override those of people."""

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
    """All values in the headers of one attempt, and created for each (send/call.py)."""

    message_id: str
    """The public id, equal for all attempts; the consumer's idempotency key."""
    timestamp: int
    """Unix seconds of this attempt, as signed."""
    signature: str
    """Tokens of rules/signing.py, separated by one space."""
    channel: str
    consumer: str
    priority: int
    attempt: int
    """1 for the first attempt, also after a replay."""
    max_attempts: int
    accepted_at: datetime
    user_agent: str
    content_type: str = ""
    """The producer's; without one the header is omitted."""
    event_type: str = ""
    ordering_key: str = ""
    ack_url: str = ""
    """The URL at which the consumer acknowledges it later."""
    replay: bool = False
    """Whether a person requested this delivery again."""
    test: bool = False
    """Whether this is a sample instead of a message."""
    forwarded: Mapping[str, str] = _NONE
    """The producer's headers, checked by rules/headers.py when the message was accepted."""
    static: Mapping[str, str] = _NONE
    """The consumer's own headers, checked by the same rules."""


def build(envelope: Envelope) -> list[tuple[str, str]]:
    """Return the headers to send: the consumer's override the producer's, the broker's both.

    Headers of people with a name of the broker's are omitted even if the broker does not send that
    header, so that they cannot claim, for example, a replay.
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
        # Except the headers that the broker itself adds to messages on dead-letter channels.
        if not is_brokers_own(name) or name.startswith(dead_letters.PREFIX):
            # Popped, so that the replacement is placed with its own layer.
            people.pop(canonical(name), None)
            people[canonical(name)] = (name, value)
    return [*people.values()]


def _rfc3339(instant: datetime) -> str:
    utc = instant if instant.tzinfo is UTC else instant.astimezone(UTC)
    return f"{utc.isoformat(timespec='milliseconds')[:-6]}Z"


# Few distinct values are used again and again.
@lru_cache(maxsize=4096)
def _visible(value: str) -> str:
    if value.isascii() and value.isprintable():
        return value
    # Ordering keys and content types may contain any text; a line break must not end the header.
    return _UNSAFE.sub(lambda found: quote(found[0]), value)
