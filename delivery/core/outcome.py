"""Outcomes of an attempt, and what a consumer's response asks for the next one."""

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Literal

RETRY_AFTER_CAP_S = 86_400.0
"""A consumer may ask for a pause of up to one day; a longer request is cut to this."""

_MAX_HTTP_DATE_LENGTH = 64
_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?")


class Outcome(StrEnum):
    """How one attempt ended. The names are stored, shown and used as a metric label."""

    DELIVERED = "delivered"
    """Any 2xx, whether or not its body was complete."""
    DELIVERED_OVERSIZED = "delivered_oversized"
    """A 2xx whose response was longer than the broker reads; the rest was discarded."""
    REDIRECT = "redirect"
    """Any 3xx: the broker never follows redirects, so the message has not arrived."""
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
    """502, 503 or 504: the consumer or a proxy in front of it is overloaded or down."""
    TIMEOUT = "timeout"
    """The whole exchange took too long, also because the response arrived too slowly."""
    CONNECT_TIMEOUT = "connect_timeout"
    """No connection within the connect timeout."""
    CONNECTION_REFUSED = "connection_refused"
    """No process listens at the address."""
    CONNECTION_RESET = "connection_reset"
    """The connection broke before the headers of a response were complete."""
    CONNECTION_ERROR = "connection_error"
    """Any other failure of the connection (no route to the host)."""
    DNS_ERROR = "dns_error"
    """The host name has no address."""
    TLS_ERROR = "tls_error"
    """The TLS handshake failed, or the certificate is not valid for the host."""
    PROTOCOL_ERROR = "protocol_error"
    """The response is not HTTP."""
    BLOCKED_ADDRESS = "blocked_address"
    """The host name resolved to an address that may not be called; nothing was sent."""
    INTERRUPTED = "interrupted"
    """The broker stopped during the attempt, or its host could not make it; not the consumer's
    fault."""
    LEASE_EXPIRED = "lease_expired"
    """The worker disappeared during the attempt; not the consumer's fault."""
    EXPIRED = "expired"
    """The message had expired; nothing was sent."""
    REJECTED = "rejected"
    """The pull consumer reported that it could not handle the message."""
    BODY_UNREADABLE = "body_unreadable"
    """The stored body is missing or cannot be decrypted; nothing was sent."""
    INTEGRITY_ERROR = "integrity_error"
    """The stored body differs from the accepted one; nothing was sent."""

    @property
    def is_success(self) -> bool:
        """Whether the consumer has received the message."""
        return self in _SUCCESSES

    @property
    def charged(self) -> bool:
        """Whether this failure counts against the delivery's attempts."""
        return self not in _SUCCESSES and self not in _BROKERS_OWN

    @property
    def words(self) -> str:
        """The display name."""
        return self.value.replace("_", " ")

    @property
    def tone(self) -> Literal["good", "bad", "wait"]:
        """The display colour: a failure of the broker itself is shown as waiting."""
        if self.is_success:
            return "good"
        return "bad" if self.charged or self is Outcome.INTEGRITY_ERROR else "wait"

    @property
    def slows_down(self) -> bool:
        """Whether the consumer asked for fewer requests (429, 502, 503, 504)."""
        return self in _SLOWING


_SUCCESSES = frozenset({Outcome.DELIVERED, Outcome.DELIVERED_OVERSIZED})
_BROKERS_OWN = frozenset({Outcome.INTERRUPTED, Outcome.LEASE_EXPIRED, Outcome.INTEGRITY_ERROR})
_REFUSALS = frozenset({Outcome.CLIENT_ERROR, Outcome.NOT_FOUND})
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
    """Return the outcome of an HTTP response with complete headers.

    ``oversized`` says that the response was cut at the limit; it matters for a 2xx only. A code
    outside 200 to 599 is no final response (RFC 9110 15) and counts as a protocol error.
    """
    named = _NAMED_STATUSES.get(code)
    if named is not None:
        return named
    outcome = _STATUS_CLASSES.get(code // 100, Outcome.PROTOCOL_ERROR)
    if oversized and outcome is Outcome.DELIVERED:
        return Outcome.DELIVERED_OVERSIZED
    return outcome


def is_refusal(outcome: Outcome, status: int | None) -> bool:
    """Whether the endpoint works but refused this one message: a 4xx other than 408, 410 and 429.

    408 says that it did not receive the request in time, 410 that it wants no more messages.
    """
    return outcome in _REFUSALS and status != HTTPStatus.REQUEST_TIMEOUT


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Return the seconds from ``now`` that a ``Retry-After`` header asks for, or None.

    Reads both forms of RFC 9110 10.2.3: delta-seconds and HTTP-date. Many servers write fractions
    of seconds, which it rounds up. Returns 0 for a date in the past, None for an unreadable value,
    and at most ``RETRY_AFTER_CAP_S``. ``now`` must be aware.
    """
    text = (value or "").strip()
    if not text or len(text) > _MAX_HTTP_DATE_LENGTH or not text.isascii():
        return None
    is_number = _SECONDS.fullmatch(text) is not None
    seconds = float(math.ceil(float(text))) if is_number else _seconds_until(text, now)
    return None if seconds is None else min(max(seconds, 0.0), RETRY_AFTER_CAP_S)


def _seconds_until(http_date: str, now: datetime) -> float | None:
    try:
        then = parsedate_to_datetime(http_date)
        if then.tzinfo is None:
            # The asctime form has no zone; every HTTP-date is in UTC (RFC 9110 5.6.7).
            then = then.replace(tzinfo=UTC)
        return (then - now).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):
        # The parser raises various errors for malformed dates.
        return None
