"""One libcurl transfer handle, the call that it sends, and the response that it returns."""

import errno
import functools
import io
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pycurl

from channels_app.core import networks
from channels_app.core.networks import Networks
from channels_app.database import clock
from delivery.core import outcome
from delivery.core.outcome import Outcome
from delivery.transport import errors
from delivery.transport.dns import Place
from delivery.transport.errors import Failure

# These headers frame the message or control the connection. Conflicting values allow request
# smuggling, so only the sender writes them (RFC 9110 7.6.1, RFC 9112 6).
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

# A header without a value makes libcurl omit its own: no wait for "100 Continue", and no default
# Content-Type if the call has none.
_TAKEN_AWAY = ["Expect:", "Content-Type:"]
_EXPECTING = ["Expect: 100-continue", "Content-Type:"]
_HTTP_VERSIONS = {
    True: pycurl.CURL_HTTP_VERSION_2TLS,
    False: pycurl.CURL_HTTP_VERSION_1_1,
}
"""By `Call.may_use_http2`."""
_ORIGIN = re.compile(r"[^/?#]*//[^/?#]*")
_KEPT_HEADER_BYTES = 2048
_END_OF_HEADERS = re.compile(rb"\n\r?\n")
_RETRY_NEVER = re.compile(
    rb"^hookstation-retry:[ \t]*never[ \t]*\r?$", re.IGNORECASE | re.MULTILINE
)
_RETRY_AFTER = re.compile(rb"^retry-after:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_SMALL_BODY = 4096
_ABORT = -1
"""A callback's return value that makes libcurl abort the transfer."""


# Named tuples instead of the usual frozen dataclasses: one of each is created for every POST, and a
# frozen dataclass of eleven fields alone takes 1.6 of the 30 microseconds that a POST costs.


class Call(NamedTuple):
    """One POST request."""

    key: int
    """Chosen by the caller and returned in the response; unique among the calls in flight."""
    url: str
    headers: Sequence[tuple[str, str]]
    """Sent in this order and spelling. Latin-1 text; the sender adds the framing headers itself."""
    body: bytes
    timeout_ms: int
    """Total time from `start` to the last byte of the response."""
    connect_timeout_ms: int
    """Time for name lookup, connection and TLS handshake together."""
    may_use_http2: bool = True
    """Whether a TLS receiver may choose HTTP/2; else it is offered HTTP/1.1 only."""


class Response(NamedTuple):
    """The result of one call."""

    key: int
    outcome: Outcome
    status: int | None
    """The final HTTP status, even if the rest of the response failed; None if none was received."""
    headers: str
    """Status line and headers of the final response, cut at 2 KiB."""
    excerpt: bytes
    """The first bytes of the response body."""
    error: str
    """Up to two sentences; empty on success, unless the response broke off after its headers."""
    retry_after: float | None
    """Seconds that an unsuccessful response asked to wait."""
    connect_ms: int | None
    """Time until the connection was ready, including TLS; None for a reused connection."""
    first_byte_ms: int | None
    """Time from the start to the first byte of the response; None if none was received."""
    total_ms: int
    remote_address: str
    """The numeric address that was called or refused; empty if none was tried."""
    is_final: bool = False
    """Whether an unsuccessful response has ``Hookstation-Retry: never``: no retry is wanted."""

    @property
    def is_local(self) -> bool:
        """Whether this host could not make the request: no resolver, network or file descriptor."""
        return self.outcome is Outcome.INTERRUPTED


class CallRefused(Exception):
    """The call cannot be sent as it is; the message is a sentence that says why."""


def header_lines(headers: Sequence[tuple[str, str]], *, expects: bool) -> list[bytes]:
    """Return the headers in libcurl's form. Raises CallRefused for forbidden ones.

    With ``expects`` the body waits until the receiver asks for it, or for one second.
    """
    fault = _names_fault(tuple([name for name, _ in headers]))
    if fault:
        raise CallRefused(fault)
    # "Name:" would make libcurl omit the header; a semicolon sends it without a value.
    lines = (_EXPECTING if expects else _TAKEN_AWAY) + [
        f"{name}: {value}" if value.strip(" \t") else f"{name};" for name, value in headers
    ]
    text = "\n".join(lines)
    # One check of the whole text: a line break in any value makes one line too many.
    if text.count("\n") != len(lines) - 1 or "\r" in text or "\0" in text:
        raise CallRefused("A request header holds a line break or a NUL.")
    try:
        return text.encode("latin-1").split(b"\n")
    except UnicodeEncodeError:
        raise CallRefused("A request header holds a character outside Latin-1.") from None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that all handles of one sender share."""

    allowed: Networks
    excerpt_bytes: int
    max_response_bytes: int
    ca_file: str


class Handle:
    """A pooled handle, with what it records about its transfer.

    The callbacks run inside libcurl, which cannot propagate exceptions: they must not raise.
    """

    __slots__ = (
        "_answer_bytes",
        "_blocked_ip",
        "_connect_timeout_ms",
        "_excerpt",
        "_has_addresses",
        "_has_target",
        "_headers",
        "_limits",
        "_may_use_http2",
        "_no_socket",
        "_on_connection",
        "_oversized",
        "_peers",
        "_socket_errno",
        "_timeout_ms",
        "_url",
        "_waited_ms",
        "call",
        "curl",
        "expects",
    )

    def __init__(self, limits: Limits, on_connection: Callable[[], None]) -> None:
        """``on_connection`` is called when the handle has opened a TLS connection."""
        self._limits = limits
        self._on_connection = on_connection
        # Status lines and headers go directly into a buffer: its `write`, called for each line,
        # costs a third of a Python function. libcurl itself ends the transfer at 300 KiB.
        self._headers = io.BytesIO()
        self._excerpt = bytearray()
        self._url = ""
        self._may_use_http2 = True
        self._has_addresses = self._has_target = False
        self._timeout_ms = self._connect_timeout_ms = -1
        self.call: Call
        self.expects = False
        self._forget()
        self.curl = self._set_up()

    def _set_up(self) -> Any:
        """Set the constant options once: each option costs a fraction of a microsecond."""
        curl = pycurl.Curl()
        for option, value in (
            (pycurl.NOSIGNAL, 1),
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            (pycurl.FOLLOWLOCATION, 0),
            # A proxy from the environment would hide the address from the guard.
            (pycurl.PROXY, ""),
            (pycurl.NOPROXY, "*"),
            (pycurl.NETRC, pycurl.NETRC_IGNORED),
            (pycurl.TCP_NODELAY, 1),
            # No default: the call's headers name the broker.
            (pycurl.USERAGENT, ""),
            (pycurl.HTTP_VERSION, _HTTP_VERSIONS[True]),
            (pycurl.SSL_VERIFYPEER, 1),
            (pycurl.SSL_VERIFYHOST, 2),
            (pycurl.CAINFO, self._limits.ca_file),
            # Limits how long a busy connection keeps using an old address of the consumer.
            (pycurl.MAXLIFETIME_CONN, 300),
            (pycurl.OPENSOCKETFUNCTION, self._open_socket),
            (pycurl.HEADERFUNCTION, self._headers.write),
            (pycurl.WRITEFUNCTION, self._on_body),
        ):
            curl.setopt(option, value)
        # Trust only the CA file, not the directory that the library was built with.
        curl.unsetopt(pycurl.CAPATH)
        return curl

    def load(self, call: Call, *, expects: bool) -> None:
        """Load a call into the handle. Raises CallRefused if it cannot be sent.

        With ``expects`` its body waits for an early answer (`header_lines`).
        """
        curl = self.curl
        lines = header_lines(call.headers, expects=expects)
        try:
            if call.url != self._url or call.may_use_http2 != self._may_use_http2:
                self._set_endpoint(call.url, call.may_use_http2)
            self._limit(call.timeout_ms, call.connect_timeout_ms)
            curl.setopt(pycurl.HTTPHEADER, lines)
            curl.setopt(pycurl.POSTFIELDS, call.body)
        except (pycurl.error, ValueError, TypeError) as error:
            raise CallRefused(f"The request cannot be sent: {error}.") from error
        self.call = call
        self.expects = expects

    def _set_endpoint(self, url: str, may_use_http2: bool) -> None:
        curl, is_tls = self.curl, url.startswith("https:")
        curl.setopt(pycurl.URL, url)
        # Waiting for a connection in progress pays if it can carry many calls.
        curl.setopt(pycurl.PIPEWAIT, is_tls and may_use_http2)
        if may_use_http2 != self._may_use_http2:
            curl.setopt(pycurl.HTTP_VERSION, _HTTP_VERSIONS[may_use_http2])
        if is_tls:
            curl.setopt(pycurl.PREREQFUNCTION, self._on_request)
        self._target(url)
        self._url, self._may_use_http2 = url, may_use_http2

    def _target(self, url: str) -> None:
        """Make libcurl request exactly what the URL says.

        By itself it resolves dot segments, and writes percent-encodings in upper case.
        """
        # pycurl cannot unset the option, so it follows every later URL of the handle.
        if self._has_target or "%" in url or "/." in url:
            target = _ORIGIN.sub("", url, count=1)
            self.curl.setopt(pycurl.REQUEST_TARGET, target if target[:1] == "/" else f"/{target}")
            self._has_target = True

    def set_addresses(self, place: Place, ips: list[str]) -> None:
        """Give libcurl a name's addresses, which it remembers for the sender's handles."""
        host, port = place
        listed = ",".join(f"[{ip}]" if ":" in ip else ip for ip in ips)
        self.curl.setopt(pycurl.RESOLVE, [f"{host}:{port}:{listed}"])
        self._has_addresses = True

    def spend(self, waited_ms: int) -> None:
        """Deduct a wait before the transfer from the limits, and add it to the timings."""
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
        """Prepare the handle for the next call."""
        if self._has_addresses:
            # Not passed on yet if the call was abandoned before it began; it must not be later.
            self.curl.unsetopt(pycurl.RESOLVE)
            self._has_addresses = False
        if len(self.call.body) > _SMALL_BODY:
            # An idle handle must not keep a large body in memory.
            self.curl.setopt(pycurl.POSTFIELDS, b"")
        del self.call
        self._forget()

    def _forget(self) -> None:
        self._headers.seek(0)
        self._headers.truncate()
        self._excerpt.clear()
        self._answer_bytes = 0
        self._oversized = False
        self._peers: list[tuple[int, Any]] = []
        """Address family and address of each socket that was opened."""
        self._socket_errno = 0
        self._blocked_ip = ""
        self._no_socket = ""
        self._waited_ms = 0

    @property
    def has_sent(self) -> bool:
        """Whether any of the current request was sent."""
        return bool(self.curl.getinfo(pycurl.REQUEST_SIZE) > 0)

    @property
    def has_sent_all(self) -> bool:
        """Whether this host took the whole body; the receiver may have read less."""
        return bool(self.curl.getinfo(pycurl.SIZE_UPLOAD_T) >= len(self.call.body))

    def answer(self, code: int, detail: str) -> Response:
        """Return the response, given libcurl's code (0 when it has read a complete response)."""
        curl, call = self.curl, self.call
        status = curl.getinfo(pycurl.RESPONSE_CODE)
        headers = _final(self._headers.getvalue())
        if code == 0:
            judged, error = errors.answered(status, oversized=False)
        else:
            # An interim response does not count.
            status = status if status >= 200 else None
            has_headers = _END_OF_HEADERS.search(headers) is not None
            judged, error = errors.judge(self._failure(code, detail, status, has_headers))
        return Response(
            key=call.key,
            outcome=judged,
            status=status,
            headers=headers[:_KEPT_HEADER_BYTES].decode("latin-1"),
            excerpt=bytes(self._excerpt),
            error=error,
            retry_after=None if judged.is_success else _retry_after(headers),
            is_final=not judged.is_success and _RETRY_NEVER.search(headers) is not None,
            connect_ms=self._connect_ms() if self._peers else None,
            first_byte_ms=self._ms(curl.getinfo(pycurl.STARTTRANSFER_TIME)) if headers else None,
            total_ms=self._ms(curl.getinfo(pycurl.TOTAL_TIME)),
            remote_address=curl.getinfo(pycurl.PRIMARY_IP) or self._blocked_ip,
        )

    def _failure(self, code: int, detail: str, status: int | None, has_headers: bool) -> Failure:
        return Failure(
            code=code,
            detail=detail,
            status=status,
            has_headers=has_headers,
            oversized=self._oversized,
            os_errno=self.curl.getinfo(pycurl.OS_ERRNO),
            sent=self.has_sent,
            blocked_ip="" if self._peers else self._blocked_ip,
            no_socket=self._no_socket,
            local_errno=self._local_errno() if code == pycurl.E_COULDNT_CONNECT else 0,
            timeout_ms=self.call.timeout_ms,
            connect_timeout_ms=min(self.call.connect_timeout_ms, self.call.timeout_ms),
        )

    def _local_errno(self) -> int:
        """Return why this host could not connect to any address, 0 if that is not the reason."""
        if not self._peers:
            return self._socket_errno if self._socket_errno in errors.LOCAL_ERRORS else 0
        number: int = self.curl.getinfo(pycurl.OS_ERRNO)
        if number == errno.ENETUNREACH and any(_has_route(*peer) for peer in self._peers):
            return 0  # it is the error of the address that was tried last
        return number if number in errors.LOCAL_ERRORS else 0

    def _connect_ms(self) -> int | None:
        curl = self.curl
        ready_s = curl.getinfo(pycurl.APPCONNECT_TIME) or curl.getinfo(pycurl.CONNECT_TIME)
        return self._ms(ready_s) if ready_s else None

    def _ms(self, seconds: float) -> int:
        return round(seconds * 1000) + self._waited_ms

    def _open_socket(self, purpose: int, address: Any) -> Any:
        """Check the actual address before connecting to it, whatever the name resolved to."""
        family, kind, protocol, peer = address
        by_ip = family in (socket.AF_INET, socket.AF_INET6)
        ip = str(peer[0]) if by_ip else "of another kind than IP"
        if not by_ip or not networks.may_call(ip, self._limits.allowed):
            self._blocked_ip = ip
            return pycurl.SOCKET_BAD
        try:
            opened = _BorrowedHandle(family, kind, protocol)
        except OSError as error:
            self._socket_errno = error.errno or 0
            self._no_socket = f"no socket on this machine, {error.strerror}"
            return pycurl.SOCKET_BAD
        self._peers.append((family, peer))
        return opened

    def _on_request(self, *ends: object) -> int:
        if self._peers:
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


# Calls to one consumer have the same header names again and again.
@functools.lru_cache(maxsize=4096)
def _names_fault(names: tuple[str, ...]) -> str:
    for name in names:
        if not _TOKEN.match(name):
            return f"{name[:60]!r} is not a header name."
        if name.lower() in _SENDERS_OWN:
            return f"The request header {name} is set by the broker."
    return ""


def _final(headers: bytes) -> bytes:
    """Return status line and headers of the last response, without preceding 1xx responses."""
    return headers[headers.rfind(b"\r\n\r\nHTTP/") + 4 :] if b"\nHTTP/" in headers else headers


def _retry_after(headers: bytes) -> float | None:
    match = _RETRY_AFTER.search(headers)
    if match is None:
        return None
    # A date is compared with the clock that measures the wait, not with this host's.
    return outcome.parse_retry_after(match[1].decode("latin-1"), clock.now())


def _has_route(family: int, peer: Any) -> bool:
    """Whether this host can reach the address's network; sends nothing."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as unused:
            unused.connect(peer)
    except OSError as error:
        return error.errno != errno.ENETUNREACH
    return True


class _BorrowedHandle(socket.socket):
    """A socket of which pycurl keeps a duplicate; the original closes without a warning."""

    def __del__(self) -> None:
        if self.fileno() >= 0:  # else it could not be opened
            self.close()
