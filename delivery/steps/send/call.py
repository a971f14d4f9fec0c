"""What the sender is asked to do, what it answers, and the request's headers as they go out."""

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from delivery.rules.outcome import Outcome

# Named tuples, not the usual frozen dataclasses: one of each is made for every POST, and making
# a frozen dataclass of eleven fields alone takes 1.6 of the 30 microseconds that a POST costs.


class Call(NamedTuple):
    """One POST."""

    key: int
    """The caller's name for it, handed back in the answer; unique among the calls in flight."""
    url: str
    headers: Sequence[tuple[str, str]]
    """Sent in this order and spelling. Latin-1 text; the framing headers are the sender's own."""
    body: bytes
    timeout_ms: int
    """For everything, from `start` to the answer's last byte."""
    connect_timeout_ms: int
    """For name, connection and TLS handshake together."""


class Response(NamedTuple):
    """How one call ended."""

    key: int
    outcome: Outcome
    status: int | None
    """The final HTTP status, also when the rest of the answer failed; None if none came."""
    headers: str
    """Status line and headers of the final answer, cut at 2 KiB."""
    excerpt: bytes
    """The first bytes of the answer's body."""
    error: str
    """One sentence; empty on success."""
    retry_after: float | None
    """Seconds that an unsuccessful answer asked to wait."""
    connect_ms: int | None
    """Until the connection was ready, TLS included; None on a connection that was open already."""
    first_byte_ms: int | None
    """Until the answer's first byte, from the start; None if none came."""
    total_ms: int
    remote_address: str
    """The numeric address that was called, or that was refused; empty if it never came to that."""
    is_final: bool = False
    """An unsuccessful answer said ``Hookstation-Retry: never``: no other attempt is wanted."""


class CallRefused(Exception):
    """The call cannot be sent as it stands; the message is a sentence that says why."""


# They frame the message or steer the connection. A second, different word on either is how
# requests are smuggled, so the sender alone writes them (RFC 9110 7.6.1, RFC 9112 6).
_SENDERS_OWN = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")

# Without a value libcurl takes a header of its own away: no waiting for "100 Continue", and no
# made-up Content-Type where the call brings none.
_TAKEN_AWAY = ["Expect:", "Content-Type:"]


def header_lines(headers: Sequence[tuple[str, str]]) -> list[bytes]:
    """The headers as libcurl wants them. Raises CallRefused for what must not go on the wire."""
    fault = _names_fault(tuple([name for name, _ in headers]))
    if fault:
        raise CallRefused(fault)
    # "Name:" would mean "do not send it" to libcurl; a semicolon sends it without a value.
    lines = _TAKEN_AWAY + [
        f"{name}: {value}" if value.strip(" \t") else f"{name};" for name, value in headers
    ]
    text = "\n".join(lines)
    # One look at the whole: a line break in any value makes one line too many.
    if text.count("\n") != len(lines) - 1 or "\r" in text or "\0" in text:
        raise CallRefused("A request header holds a line break or a NUL.")
    try:
        return text.encode("latin-1").split(b"\n")
    except UnicodeEncodeError:
        raise CallRefused("A request header holds a character outside Latin-1.") from None


# The calls to one consumer carry the same names again and again.
@functools.lru_cache(maxsize=4096)
def _names_fault(names: tuple[str, ...]) -> str:
    for name in names:
        if not _TOKEN.match(name):
            return f"{name[:60]!r} is not a header name."
        if name.lower() in _SENDERS_OWN:
            return f"The request header {name} is the sender's own."
    return ""
