"""What one attempt came to, and what a consumer's answer says about the next one."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Literal

RETRY_AFTER_CAP_S = 86_400.0
"""A consumer may ask for a pause of up to one day; a longer wish is cut to this."""

_MAX_HTTP_DATE_LENGTH = 64


class Outcome(StrEnum):
    """How one attempt ended. The names are stored, shown and used as a metric label."""

    DELIVERED = "delivered"
    """Any 2xx."""
    DELIVERED_OVERSIZED = "delivered_oversized"
    """A 2xx whose answer was longer than the broker reads; the rest was thrown away."""
    REDIRECT = "redirect"
    """Any 3xx: redirects are never followed, the message has not arrived."""
    CLIENT_ERROR = "client_error"
    """A 4xx other than 404, 410 and 429."""
    NOT_FOUND = "not_found"
    """404."""
    GONE = "gone"
    """410: the consumer wants no more messages."""
    THROTTLED = "throttled"
    """429."""
    SERVER_ERROR = "server_error"
    """A 5xx other than 502, 503 and 504."""
    UNAVAILABLE = "unavailable"
    """502, 503 or 504: something in front of the consumer, or itself, is overloaded or down."""
    TIMEOUT = "timeout"
    """The whole exchange took too long, an answer that drips in slowly included."""
    CONNECT_TIMEOUT = "connect_timeout"
    """No connection within the connect timeout."""
    CONNECTION_REFUSED = "connection_refused"
    """Nobody listens at the address."""
    CONNECTION_RESET = "connection_reset"
    """The connection broke before the answer was complete."""
    CONNECTION_ERROR = "connection_error"
    """Any other failure of the connection (no route, network down)."""
    DNS_ERROR = "dns_error"
    """The host name has no address."""
    TLS_ERROR = "tls_error"
    """The handshake failed or the certificate is not valid for the host."""
    PROTOCOL_ERROR = "protocol_error"
    """The answer is not HTTP."""
    BLOCKED_ADDRESS = "blocked_address"
    """The host name led to an address that may not be called; nothing was sent."""
    INTERRUPTED = "interrupted"
    """The broker stopped in the middle; not the consumer's fault."""
    LEASE_EXPIRED = "lease_expired"
    """The worker vanished with the attempt open; not the consumer's fault."""
    EXPIRED = "expired"
    """The message's last instant had passed; nothing was sent."""
    REJECTED = "rejected"
    """The pull consumer said that it could not handle it."""
    BODY_UNREADABLE = "body_unreadable"
    """The stored body cannot be decrypted or is missing; nothing was sent."""
    INTEGRITY_ERROR = "integrity_error"
    """The stored body is not what was accepted; nothing was sent."""

    @property
    def is_success(self) -> bool:
        """Whether the consumer has the message."""
        return self in _SUCCESSES

    @property
    def charged(self) -> bool:
        """Whether this failure uses up one of the delivery's attempts."""
        return self not in _SUCCESSES and self not in _BROKERS_OWN

    @property
    def words(self) -> str:
        """Its name as people read it."""
        return self.value.replace("_", " ")

    @property
    def tone(self) -> Literal["good", "bad", "wait"]:
        """The colour in which people see it: a failure of the broker's own only has to wait."""
        if self.is_success:
            return "good"
        return "bad" if self.charged or self is Outcome.INTEGRITY_ERROR else "wait"

    @property
    def slows_down(self) -> bool:
        """Whether the consumer asked for a slower pace (429, 502, 503, 504)."""
        return self in _SLOWING


_SUCCESSES = frozenset({Outcome.DELIVERED, Outcome.DELIVERED_OVERSIZED})
_BROKERS_OWN = frozenset({Outcome.INTERRUPTED, Outcome.LEASE_EXPIRED, Outcome.INTEGRITY_ERROR})
_SLOWING = frozenset({Outcome.THROTTLED, Outcome.UNAVAILABLE})

_NAMED_STATUSES = {
    404: Outcome.NOT_FOUND,
    410: Outcome.GONE,
    429: Outcome.THROTTLED,
    502: Outcome.UNAVAILABLE,
    503: Outcome.UNAVAILABLE,
    504: Outcome.UNAVAILABLE,
}
_STATUS_CLASSES = {
    2: Outcome.DELIVERED,
    3: Outcome.REDIRECT,
    4: Outcome.CLIENT_ERROR,
    5: Outcome.SERVER_ERROR,
}


def from_status(code: int, oversized: bool) -> Outcome:
    """The outcome of a complete HTTP answer.

    ``oversized`` says that the answer was cut at the limit; it matters for a 2xx only. A code
    outside 200 to 599 is no final answer (RFC 9110 15) and counts as a protocol error.
    """
    named = _NAMED_STATUSES.get(code)
    if named is not None:
        return named
    outcome = _STATUS_CLASSES.get(code // 100, Outcome.PROTOCOL_ERROR)
    if oversized and outcome is Outcome.DELIVERED:
        return Outcome.DELIVERED_OVERSIZED
    return outcome


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds from ``now`` that a ``Retry-After`` header asks for, None when it asks for nothing.

    Both forms of RFC 9110 10.2.3 are read: delta-seconds and HTTP-date. A date in the past is 0,
    anything unreadable None, and no wish is longer than ``RETRY_AFTER_CAP_S``.
    ``now`` must be aware.
    """
    text = (value or "").strip()
    if not text or len(text) > _MAX_HTTP_DATE_LENGTH or not text.isascii():
        return None
    seconds = float(text) if text.isdecimal() else _seconds_until(text, now)
    return None if seconds is None else min(max(seconds, 0.0), RETRY_AFTER_CAP_S)


def _seconds_until(http_date: str, now: datetime) -> float | None:
    try:
        then = parsedate_to_datetime(http_date)
        if then.tzinfo is None:
            # The asctime form carries no zone; every HTTP-date is in UTC (RFC 9110 5.6.7).
            then = then.replace(tzinfo=UTC)
        return (then - now).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):
        # The parser lets whatever a hostile date broke inside it escape.
        return None
