"""Decide which headers may be added to a delivery: neither HTTP framing nor the broker's own."""

import re
from collections.abc import Mapping

MAX_HEADERS = 32
MAX_NAME_LENGTH = 100
MAX_VALUE_LENGTH = 4096
"""Maximum length in bytes, which in Latin-1 equals characters."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x20-\x7e\xa0-\xff]*")

# Hop-by-hop headers (RFC 9110 7.6.1), and those that describe the broker's own request.
_FRAMING = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)
_CREDENTIALS = frozenset({"authorization", "cookie"})
_RESERVED = ("hookstation-", "proxy-", "webhook-")


def canonical(name: str) -> str:
    """The name in the form in which a receiver may see it.

    Header names are case-insensitive, and CGI and WSGI do not distinguish hyphens from
    underscores. So ``Webhook_Id`` must be rejected like ``webhook-id``.
    """
    return name.lower().replace("_", "-")


def is_brokers_own(name: str) -> bool:
    """Whether only the broker may send a header of this name, in any spelling."""
    known = canonical(name)
    return known in _FRAMING or known.startswith(_RESERVED)


def forwardable(name: str, value: str) -> str | None:
    """Return why a producer's header is not forwarded to consumers, as a sentence; None if it is.

    Headers with credentials are not forwarded: they authenticate the producer to the broker only.
    """
    if canonical(name) in _CREDENTIALS:
        return f"The header {name} would send credentials to every consumer."
    return settable(name, value)


def settable(name: str, value: str) -> str | None:
    """Return why a consumer may not have this static header, as a sentence; None if it may."""
    if len(name) > MAX_NAME_LENGTH or not _TOKEN.fullmatch(name):
        return f"{name[:MAX_NAME_LENGTH]!r} is not a header name."
    if is_brokers_own(name):
        return f"The header {name} is set by the broker."
    if len(value) > MAX_VALUE_LENGTH:
        return f"The header {name} is longer than {MAX_VALUE_LENGTH} bytes."
    if not _VALUE.fullmatch(value):
        return f"The header {name} may hold printable Latin-1 characters only."
    return None


def check_forwarded(headers: Mapping[str, str]) -> str | None:
    """Return the first error in the headers that a producer wants to forward; None if valid."""
    if len(headers) > MAX_HEADERS:
        return f"At most {MAX_HEADERS} headers are forwarded."
    return next(filter(None, (forwardable(*header) for header in headers.items())), None)


def check_static(headers: Mapping[str, str]) -> str | None:
    """Return the first error in a consumer's static headers; None if they are valid."""
    if len(headers) > MAX_HEADERS:
        return f"A consumer has at most {MAX_HEADERS} headers of its own."
    return next(filter(None, (settable(*header) for header in headers.items())), None)
