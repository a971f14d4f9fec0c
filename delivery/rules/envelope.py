"""Envelope: the headers a consumer receives. The broker's own win over everybody else's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Envelope:
    """Everything that one request's headers are made of."""

    message_id: str
    """Public id: the same for every attempt, the consumer's idempotency key."""
    timestamp: int
    """Unix seconds of this attempt."""
    signature: str
    channel: str
    consumer: str
    attempt: int
    max_attempts: int
    accepted_at: datetime
    priority: int
    user_agent: str
    content_type: str = ""
    event_type: str = ""
    ordering_key: str = ""
    replay: bool = False
    test: bool = False
    forwarded: Mapping[str, str] = field(default_factory=dict)
    """What the producer asked to pass on."""
    static: Mapping[str, str] = field(default_factory=dict)
    """What the consumer's registration adds to each request."""


def build(envelope: Envelope) -> list[tuple[str, str]]:
    """Headers of one attempt: the producer's, over them the consumer's, over them the broker's.

    Names are compared without case; each stands once.
    """
    headers: dict[str, tuple[str, str]] = {}
    for source in (envelope.forwarded, envelope.static, _own(envelope)):
        for name, value in source.items():
            headers[name.lower()] = (name, value)
    return list(headers.values())


def _own(envelope: Envelope) -> dict[str, str]:
    own = {
        "webhook-id": envelope.message_id,
        "webhook-timestamp": str(envelope.timestamp),
        "webhook-signature": envelope.signature,
        "User-Agent": envelope.user_agent,
        "Hookstation-Channel": envelope.channel,
        "Hookstation-Consumer": envelope.consumer,
        "Hookstation-Priority": str(envelope.priority),
        "Hookstation-Attempt": str(envelope.attempt),
        "Hookstation-Max-Attempts": str(envelope.max_attempts),
        "Hookstation-Accepted-At": instant(envelope.accepted_at),
    }
    optional = {
        "Content-Type": envelope.content_type,
        "Hookstation-Event-Type": envelope.event_type,
        "Hookstation-Ordering-Key": envelope.ordering_key,
        "Hookstation-Replay": "true" if envelope.replay else "",
        "Hookstation-Test": "true" if envelope.test else "",
    }
    return own | {name: value for name, value in optional.items() if value}


def instant(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, as in the API."""
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
