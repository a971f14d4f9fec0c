"""Run a scripted HTTP receiver on a real socket, as the consumer of test deliveries.

    with Receiver() as consumer:
        consumer.script("/hook", [Reply(500), Reply(200)])     # the last reply stays
        post(consumer.url("/hook"))
        (request,) = consumer.wait_for(1)

The names of paths without a script select the response: ``/status/503?retry_after=2``,
``/slow?ms=200``, ``/drip?ms=50&bytes=100``, ``/oversized?bytes=100000``, ``/redirect?to=URL``,
``/hang``, ``/reset``, ``/garbage``, ``/huge-headers``; any other path responds 200 ``ok``.
"""

import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from io import BufferedReader
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from tests.support.certificates import certificate, server_context

_PATIENCE_S = 120.0
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class Reply:
    """A response. The default is 200 on a connection that stays open."""

    status: int = 200
    body: bytes = b"ok"
    headers: tuple[tuple[str, str], ...] = ()
    delay_ms: int = 0
    """Milliseconds before the response."""
    until: threading.Event | None = None
    """Respond only when this is set."""
    drip_ms: int = 0
    """Milliseconds between bytes of the body."""
    close: bool = False
    """Close the connection after the response."""
    hang: bool = False
    """Never respond; the connection stays open until the receiver closes."""
    reset: bool = False
    """Send a TCP reset instead of a response."""
    raw: bytes | None = None
    """Send exactly these bytes instead of an HTTP response, then close."""


@dataclass(frozen=True, slots=True)
class Request:
    """A received request."""

    method: str
    target: str
    """Path and query as sent."""
    path: str
    headers: list[tuple[str, str]]
    """In the order sent, names as sent."""
    body: bytes
    at: float
    """`time.monotonic()` when the body was complete."""
    connection: int
    """Number of the connection, from 1."""

    def header(self, name: str) -> str | None:
        """Return the first value of a header, case-insensitively; None if it is absent."""
        return next((v for n, v in self.headers if n.lower() == name.lower()), None)


@dataclass(slots=True)
class _Seen:
    """State that the connection threads share, guarded by `changed`."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    requests: list[Request] = field(default_factory=list)
    scripts: dict[str, list[Reply]] = field(default_factory=dict)
    sockets: set[socket.socket] = field(default_factory=set)
    threads: list[threading.Thread] = field(default_factory=list)
    connections: int = 0
    open_requests: int = 0
    max_concurrency: int = 0


class Receiver:
    """Listens from construction on; `close()` ends every connection.

    Without ``port`` it listens on an ephemeral one.

    ``tls`` serves HTTPS with a self-signed certificate for 127.0.0.1, ::1 and localhost; a client
    that trusts ``ca_file`` accepts it, any other refuses it.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, tls: bool = False) -> None:
        self._seen, self._closing = _Seen(), threading.Event()
        self._tls = server_context() if tls else None
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self._netloc = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def ca_file(self) -> str:
        """Path of the certificate that clients must trust in TLS mode."""
        return str(certificate()[0])

    def url(self, target: str = "/ok", *, host: str | None = None) -> str:
        """Return the URL of a path here, under another host name if one is given."""
        netloc = self._netloc if host is None else f"{host}:{self.port}"
        return f"{'http' if self._tls is None else 'https'}://{netloc}{target}"

    def script(self, path: str, replies: Iterable[Reply]) -> None:
        """Respond to the next requests for ``path`` with these in turn; the last one stays."""
        with self._seen.changed:
            self._seen.scripts[path] = list(replies)

    def requests(self, path: str | None = None) -> list[Request]:
        """Return the requests so far, in order, for one path or for all."""
        with self._seen.changed:
            return self._matching(path)

    def wait_for(
        self, count: int, *, timeout: float = _PATIENCE_S, path: str | None = None
    ) -> list[Request]:
        """Return the requests once there are ``count``; TimeoutError after ``timeout`` s."""
        deadline = time.monotonic() + timeout
        with self._seen.changed:
            # Check the total first: filtering at each arrival would be quadratic.
            while len(self._seen.requests) < count or len(self._matching(path)) < count:
                if not self._seen.changed.wait(deadline - time.monotonic()):
                    found = len(self._matching(path))
                    raise TimeoutError(f"{found} of {count} requests after {timeout} s")
            return self._matching(path)

    @property
    def connections(self) -> int:
        """Number of accepted connections."""
        return self._seen.connections

    @property
    def max_concurrency(self) -> int:
        """Highest number of requests that waited for their response at one time."""
        return self._seen.max_concurrency

    def close(self) -> None:
        """Stop listening, cut every connection and join every thread."""
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), close() alone does not
        self._listener.close()
        self._acceptor.join(_PATIENCE_S)
        with self._seen.changed:
            sockets, threads = list(self._seen.sockets), list(self._seen.threads)
        for connection in sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(_PATIENCE_S)

    def _matching(self, path: str | None) -> list[Request]:
        return [r for r in self._seen.requests if path in (None, r.path)]

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
                if self._tls is not None:
                    # The handshake runs in the connection's own thread.
                    connection = self._tls.wrap_socket(
                        connection, server_side=True, do_handshake_on_connect=False
                    )
            except OSError:
                continue
            with self._seen.changed:
                self._seen.connections += 1
                arguments = (connection, self._seen.connections)
                thread = threading.Thread(target=self._serve, args=arguments, daemon=True)
                self._seen.sockets.add(connection)
                self._seen.threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        # Many tests disconnect on purpose.
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()
            with connection.makefile("rb") as stream:
                while self._exchange(connection, stream, number):
                    pass
        with self._seen.changed:
            self._seen.sockets.discard(connection)
        connection.close()

    def _exchange(self, connection: socket.socket, stream: BufferedReader, number: int) -> bool:
        """Serve one request; returns whether the connection stays open."""
        request = _read(connection, stream, number)
        if request is None:
            return False
        with self._seen.changed:
            self._seen.requests.append(request)
            self._seen.open_requests += 1
            self._seen.max_concurrency = max(self._seen.max_concurrency, self._seen.open_requests)
            self._seen.changed.notify_all()
            reply = self._next_reply(request)
        try:
            return self._send(connection, reply)
        finally:
            with self._seen.changed:
                self._seen.open_requests -= 1

    def _next_reply(self, request: Request) -> Reply:
        script = self._seen.scripts.get(request.path) or [named_reply(request.target)]
        return script.pop(0) if len(script) > 1 else script[0]

    def _send(self, connection: socket.socket, reply: Reply) -> bool:
        if self._closing.wait(None if reply.hang else reply.delay_ms / 1000):
            return False
        while reply.until is not None and not reply.until.wait(0.1):
            if self._closing.is_set():
                return False
        if reply.reset:
            # With a linger time of zero seconds, closing sends a reset.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        if reply.raw is not None:
            connection.sendall(reply.raw)
            return False
        head = _head(reply)
        connection.sendall(head if reply.drip_ms else head + reply.body)
        for byte in reply.body if reply.drip_ms else b"":
            if self._closing.wait(reply.drip_ms / 1000):
                return False
            connection.sendall(bytes([byte]))
        return not reply.close


_FIXED = {
    "hang": Reply(hang=True),
    "reset": Reply(reset=True),
    "garbage": Reply(raw=b"\x00\x01 this is no HTTP at all\r\n\r\n"),
    "huge-headers": Reply(headers=tuple((f"X-Filler-{n}", "x" * 1000) for n in range(200))),
}


def named_reply(target: str) -> Reply:
    """Return the response of a path without a script; see the module's docstring."""
    parts = urlsplit(target)
    query = dict(parse_qsl(parts.query))
    kind, _, rest = parts.path.strip("/").partition("/")
    match kind:
        case "status":
            after = (("Retry-After", query["retry_after"]),) if "retry_after" in query else ()
            return Reply(int(rest), headers=after)
        case "redirect":
            return Reply(302, headers=(("Location", query.get("to", "/ok")),))
        case "slow":
            return Reply(delay_ms=int(query.get("ms", "100")))
        case "drip":
            size, wait_ms = int(query.get("bytes", "100000")), int(query.get("ms", "100"))
            return Reply(body=b"." * size, drip_ms=wait_ms)
        case "oversized":
            return Reply(body=b"x" * int(query.get("bytes", "100000")))
    return _FIXED.get(kind, Reply())


def _head(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {_PHRASES.get(reply.status, 'Unnamed')}"]
    lines += [f"{name}: {value}" for name, value in reply.headers]
    if reply.status != 204:
        lines.append(f"Content-Length: {len(reply.body)}")
    if reply.close:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _read(connection: socket.socket, stream: BufferedReader, number: int) -> Request | None:
    first = stream.readline(65536).decode("latin-1").split()
    if len(first) != 3:
        return None
    headers: list[tuple[str, str]] = []
    length = 0
    while (line := stream.readline(65536)) not in (b"\r\n", b"\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers.append((name, value.strip()))
        if name.lower() == "content-length":
            length = int(value)
        elif name.lower() == "expect":
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = stream.read(length)
    if len(body) < length:
        return None
    method, target, _version = first
    path = target.partition("?")[0]
    return Request(method, target, path, headers, body, time.monotonic(), number)
