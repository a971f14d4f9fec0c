"""Check headers of deliveries, parse conditional requests, and write requests as curl commands."""

import base64
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from channels_app.core.errors import PreconditionFailed

MAX_HEADERS = 32
MAX_NAME_LENGTH = 100
MAX_VALUE_LENGTH = 4096
"""Maximum length in bytes, which in Latin-1 equals characters."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_MEDIA_RANGE = re.compile(r"[a-z0-9!#$&^_.+-]{1,127}/(?:[a-z0-9!#$&^_.+-]{1,127}|\*)")
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
MAX_BODY_LENGTH = 64 * 1024
"""Limit for bodies, since shells limit the length of a command."""
_ETAG = re.compile(r'\s*(?:(W/)?"([\x21\x23-\x7e]*)")\s*(?:,|\Z)')


def media_range_fault(value: str) -> str | None:
    """Return what is wrong with a media type or range; None if it is valid."""
    if _MEDIA_RANGE.fullmatch(value):
        return None
    return "A media type looks like application/json or text/*, in lower case."


def canonical(name: str) -> str:
    """The name in the form in which a receiver may see it.

    Header names are case-insensitive, and CGI and WSGI do not distinguish hyphens from
    underscores. So ``Webhook_Id`` must be rejected like ``webhook-id``.
    """
    return name.lower().replace("_", "-")


def is_brokers_own(name: str) -> bool:
    """Whether only the broker may send a header of this name, in any spelling."""
    header = canonical(name)
    return header in _FRAMING or header.startswith(_RESERVED)


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


def line(url: str, headers: Iterable[tuple[str, str]], body: bytes) -> str:
    """``curl`` with these headers and exactly this body; '' if the body is too long."""
    if len(body) > MAX_BODY_LENGTH:
        return ""
    parts = [f"curl -isSg --path-as-is -X POST {shlex.quote(url)}"]
    parts += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers]
    text = body.decode("utf-8", errors="replace")
    is_plain = text.replace("\n", "").isprintable() and "\ufffd" not in text
    if not is_plain or text.startswith("@"):
        # Not printable, or curl would take the text for a file name.
        encoded = base64.b64encode(body).decode()
        return f"echo {encoded} | base64 -d | " + " \\\n  ".join([*parts, "--data-binary @-"])
    return " \\\n  ".join([*parts, f"--data-binary {shlex.quote(text)}"])


@dataclass(frozen=True, slots=True)
class Precondition:
    """What must hold for an object before it is written."""

    versions: frozenset[int] | None = None
    """The object's version is one of these; None: any version."""
    must_exist: bool = False
    must_be_new: bool = False

    def holds(self, version: int | None) -> bool:
        """Whether an object of this version (None: no object) may be written."""
        if version is None:
            return not self.must_exist
        if self.must_be_new:
            return False
        return self.versions is None or version in self.versions

    def refusal(self, version: int | None, noun: str) -> PreconditionFailed | None:
        """Return what to answer, with the object's kind for people; None if it holds."""
        if self.holds(version):
            return None
        return PreconditionFailed("stale_version", f"The {noun} has changed since; read it again.")

    def require(self, version: int | None, noun: str) -> None:
        """Raise PreconditionFailed unless it holds."""
        if refusal := self.refusal(version, noun):
            raise refusal


ALWAYS = Precondition()


def parse(if_match: str | None, if_none_match: str | None = None) -> Precondition:
    """The precondition that the two headers express together.

    A weak tag never matches, as RFC 9110 requires for If-Match. Raises ValueError with a sentence
    that begins with the header's name.
    """
    if if_none_match is not None and if_none_match.strip() != "*":
        raise ValueError("If-None-Match may only be * on a write: create, and never replace.")
    must_be_new = if_none_match is not None
    if if_match is None:
        return Precondition(must_be_new=must_be_new)
    if if_match.strip() == "*":
        return Precondition(must_exist=True, must_be_new=must_be_new)
    return Precondition(frozenset(_versions(if_match)), must_exist=True, must_be_new=must_be_new)


def tag(version: int, state: str = "") -> str:
    """The ETag of a version and of the other state in a response.

    Writes compare only the version.
    """
    return f'"{version}.{state}"' if state else f'"{version}"'


def _versions(header: str) -> list[int]:
    versions: list[int] = []
    position = 0
    while position < max(len(header), 1):
        match = _ETAG.match(header, position)
        if match is None:
            raise ValueError('If-Match must be * or a list of ETags such as "3".')
        weak, opaque = match.groups()
        opaque = opaque.partition(".")[0]
        if weak is None and opaque.isascii() and opaque.isdecimal() and len(opaque) < 19:
            versions.append(int(opaque))
        position = match.end()
    return versions
