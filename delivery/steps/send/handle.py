"""One libcurl transfer handle: what it is asked to send, what it returns, and how it does it."""

import functools
import io
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pycurl

from channels_app import clock
from channels_app.rules import addresses
from channels_app.rules.addresses import Networks
from delivery.rules import outcome
from delivery.rules.outcome import Outcome
from delivery.steps.send import errors
from delivery.steps.send.dns import Place
from delivery.steps.send.errors import Failure

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


_KEPT_HEADER_BYTES = 2048
_RETRY_NEVER = re.compile(
    rb"^hookstation-retry:[ \t]*never[ \t]*\r?$", re.IGNORECASE | re.MULTILINE
)
_RETRY_AFTER = re.compile(rb"^retry-after:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_SMALL_BODY = 4096
_ABORT = -1
"""What a callback returns to make libcurl stop the transfer."""


class _BorrowedHandle(socket.socket):
    """A socket of which pycurl keeps a duplicate; the original closes without a warning."""

    def __del__(self) -> None:
        if self.fileno() >= 0:  # else it could not be opened
            self.close()


@dataclass(frozen=True, slots=True)
class Limits:
    """What all handles of one sender have in common."""

    allowed: Networks
    excerpt_bytes: int
    max_response_bytes: int
    ca_file: str


class Handle:
    """A pooled handle with what it has seen of the transfer that it carries.

    The callbacks run inside libcurl, where an exception has nowhere to go: they must not raise.
    """

    __slots__ = (
        "_answer_bytes",
        "_blocked_ip",
        "_connect_timeout_ms",
        "_excerpt",
        "_headers",
        "_leads",
        "_limits",
        "_no_socket",
        "_on_connection",
        "_opened",
        "_oversized",
        "_timeout_ms",
        "_url",
        "_waited_ms",
        "call",
        "curl",
    )

    def __init__(self, limits: Limits, on_connection: Callable[[], None]) -> None:
        """``on_connection`` is called when a TLS connection of its own stands."""
        self._limits = limits
        self._on_connection = on_connection
        # Status lines and headers go straight into a buffer: called for each line, its `write`
        # costs a third of a function of ours. libcurl itself ends the transfer at 300 KiB.
        self._headers = io.BytesIO()
        self._excerpt = bytearray()
        self._url = ""
        self._leads = False
        self._timeout_ms = self._connect_timeout_ms = -1
        self.call: Call
        self._forget()
        self.curl = self._set_up()

    def _set_up(self) -> Any:
        """What never changes, set once: each option costs a fraction of a microsecond."""
        curl = pycurl.Curl()
        for option, value in (
            (pycurl.NOSIGNAL, 1),
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            (pycurl.FOLLOWLOCATION, 0),
            # The environment's proxies would take the address out of the guard's sight.
            (pycurl.PROXY, ""),
            (pycurl.NOPROXY, "*"),
            (pycurl.NETRC, pycurl.NETRC_IGNORED),
            (pycurl.TCP_NODELAY, 1),
            # None of its own: the call's headers name the broker.
            (pycurl.USERAGENT, ""),
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS),
            (pycurl.SSL_VERIFYPEER, 1),
            (pycurl.SSL_VERIFYHOST, 2),
            (pycurl.CAINFO, self._limits.ca_file),
            # A consumer that moves is followed within this time, however busy its connections.
            (pycurl.MAXLIFETIME_CONN, 300),
            (pycurl.OPENSOCKETFUNCTION, self._open_socket),
            (pycurl.HEADERFUNCTION, self._headers.write),
            (pycurl.WRITEFUNCTION, self._on_body),
        ):
            curl.setopt(option, value)
        # The CA file says who is trusted, and no directory that the library was built with.
        curl.unsetopt(pycurl.CAPATH)
        return curl

    def load(self, call: Call) -> None:
        """Put one call on the handle. Raises CallRefused for what cannot be sent."""
        curl = self.curl
        lines = header_lines(call.headers)
        try:
            if call.url != self._url:
                curl.setopt(pycurl.URL, call.url)
                tls = call.url.startswith("https:")
                # Waiting for a connection under way pays where it can carry many calls.
                curl.setopt(pycurl.PIPEWAIT, tls)
                if tls:
                    curl.setopt(pycurl.PREREQFUNCTION, self._on_request)
                self._url = call.url
            self._limit(call.timeout_ms, call.connect_timeout_ms)
            curl.setopt(pycurl.HTTPHEADER, lines)
            curl.setopt(pycurl.POSTFIELDS, call.body)
        except (pycurl.error, ValueError, TypeError) as error:
            raise CallRefused(f"The call cannot be sent: {error}.") from error
        self.call = call

    def lead(self, place: Place, ips: list[str]) -> None:
        """Tell libcurl where a name leads; it remembers, for all handles of the sender."""
        host, port = place
        listed = ",".join(f"[{ip}]" if ":" in ip else ip for ip in ips)
        self.curl.setopt(pycurl.RESOLVE, [f"{host}:{port}:{listed}"])
        self._leads = True

    def spend(self, waited_ms: int) -> None:
        """Count what the call has waited already against its limits, and in its timings."""
        self._waited_ms = waited_ms
        call = self.call
        self._limit(call.timeout_ms - waited_ms, call.connect_timeout_ms - waited_ms)

    def _limit(self, timeout_ms: int, connect_timeout_ms: int) -> None:
        # Zero would mean "no limit".
        if timeout_ms != self._timeout_ms:
            self.curl.setopt(pycurl.TIMEOUT_MS, max(timeout_ms, 1))
            self._timeout_ms = timeout_ms
        if connect_timeout_ms != self._connect_timeout_ms:
            self.curl.setopt(pycurl.CONNECTTIMEOUT_MS, max(connect_timeout_ms, 1))
            self._connect_timeout_ms = connect_timeout_ms

    def unload(self) -> None:
        """Make the handle ready for the next call."""
        if self._leads:
            # Not yet told if the call was given up before it began; it must not be told later.
            self.curl.unsetopt(pycurl.RESOLVE)
            self._leads = False
        if len(self.call.body) > _SMALL_BODY:
            # An idle handle must not hold on to a large body.
            self.curl.setopt(pycurl.POSTFIELDS, b"")
        del self.call
        self._forget()

    def _forget(self) -> None:
        self._headers.seek(0)
        self._headers.truncate()
        self._excerpt.clear()
        self._answer_bytes = 0
        self._oversized = False
        self._opened = 0
        self._blocked_ip = ""
        self._no_socket = ""
        self._waited_ms = 0

    @property
    def has_sent(self) -> bool:
        """Whether any of the request that it carries has gone out."""
        return bool(self.curl.getinfo(pycurl.REQUEST_SIZE) > 0)

    def answer(self, code: int, detail: str) -> Response:
        """How the call ended, from libcurl's code (0 when it has read a whole answer)."""
        curl, call = self.curl, self.call
        status = curl.getinfo(pycurl.RESPONSE_CODE)
        if code == 0:
            found, error = errors.answered(status, oversized=False)
        else:
            # An interim answer is none.
            status = status if status >= 200 else None
            found, error = errors.judge(self._failure(code, detail, status))
        headers = _final(self._headers.getvalue())
        return Response(
            key=call.key,
            outcome=found,
            status=status,
            headers=headers[:_KEPT_HEADER_BYTES].decode("latin-1"),
            excerpt=bytes(self._excerpt),
            error=error,
            retry_after=None if found.is_success else _retry_after(headers),
            is_final=not found.is_success and _RETRY_NEVER.search(headers) is not None,
            connect_ms=self._connect_ms() if self._opened else None,
            first_byte_ms=self._ms(curl.getinfo(pycurl.STARTTRANSFER_TIME)) if headers else None,
            total_ms=self._ms(curl.getinfo(pycurl.TOTAL_TIME)),
            remote_address=curl.getinfo(pycurl.PRIMARY_IP) or self._blocked_ip,
        )

    def _failure(self, code: int, detail: str, status: int | None) -> Failure:
        return Failure(
            code=code,
            detail=detail,
            status=status,
            oversized=self._oversized,
            os_errno=self.curl.getinfo(pycurl.OS_ERRNO),
            sent=self.has_sent,
            blocked_ip="" if self._opened else self._blocked_ip,
            no_socket=self._no_socket,
            timeout_ms=self.call.timeout_ms,
            connect_timeout_ms=min(self.call.connect_timeout_ms, self.call.timeout_ms),
        )

    def _connect_ms(self) -> int | None:
        curl = self.curl
        ready_s = curl.getinfo(pycurl.APPCONNECT_TIME) or curl.getinfo(pycurl.CONNECT_TIME)
        return self._ms(ready_s) if ready_s else None

    def _ms(self, seconds: float) -> int:
        return round(seconds * 1000) + self._waited_ms

    def _open_socket(self, purpose: int, address: Any) -> Any:
        """The guard: the address that is really about to be called, whatever the name said."""
        family, kind, protocol, peer = address
        by_ip = family in (socket.AF_INET, socket.AF_INET6)
        ip = str(peer[0]) if by_ip else "of another kind than IP"
        if not by_ip or not addresses.may_call(ip, self._limits.allowed):
            self._blocked_ip = ip
            return pycurl.SOCKET_BAD
        try:
            opened = _BorrowedHandle(family, kind, protocol)
        except OSError as error:
            self._no_socket = f"no socket on this machine, {error.strerror}"
            return pycurl.SOCKET_BAD
        self._opened += 1
        return opened

    def _on_request(self, *ends: object) -> int:
        if self._opened:
            self._on_connection()
        return pycurl.PREREQFUNC_OK

    def _on_body(self, chunk: bytes) -> int | None:
        self._answer_bytes += len(chunk)
        room = self._limits.excerpt_bytes - len(self._excerpt)
        if room > 0:
            self._excerpt += chunk[:room]
        if self._answer_bytes > self._limits.max_response_bytes:
            self._oversized = True
            return _ABORT
        return None


def _final(headers: bytes) -> bytes:
    """Status line and headers of the last answer, without the 1xx that came before it."""
    return headers[headers.rfind(b"\r\n\r\nHTTP/") + 4 :] if b"\nHTTP/" in headers else headers


def _retry_after(headers: bytes) -> float | None:
    found = _RETRY_AFTER.search(headers)
    if found is None:
        return None
    # A date is compared with the clock that the wait is counted by, not with this machine's.
    return outcome.parse_retry_after(found[1].decode("latin-1"), clock.now())
