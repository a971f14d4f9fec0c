"""Run a small consumer for tests by hand: it checks signatures, shows requests and can fail.

The path decides the response: ``/slow?ms=800``, ``/failing?status=500&retry_after=5`` (with
``types=order.paid,order.sent`` for these event types only, with ``until=replay`` until the message
is replayed), ``/recovering?after=2`` (fails twice for each message, then accepts it), ``/hang``;
any other path accepts everything at once. ``GET /stats`` returns the counts so far as JSON.
"""

import json
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from channels_app.core.encryption import PUBLIC, decode_public_key, decode_secret
from delivery.core import signing

MAX_BODY_LENGTH = 64 * 1024 * 1024
MAX_PAUSE_S = 600.0
REMEMBERED = 10_000
"""Messages whose attempts are remembered for ``/recovering`` and to recognise repeats; the
oldest are forgotten first."""
MAX_PATHS = 1000
"""Maximum paths with counts of their own."""
IDLE_S = 300.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A request and its response."""

    path: str
    status: int
    signature: str
    """``valid``, ``unchecked`` (no secret for this path) or why it is invalid."""
    message_id: str
    event_type: str
    attempt: str
    repeated: bool
    """This message was accepted before, which at-least-once delivery allows."""
    size: int


@dataclass(slots=True)
class Tally:
    """Counts of one path."""

    requests: int = 0
    taken: int = 0
    valid: int = 0
    invalid: int = 0
    repeated: int = 0


@dataclass(slots=True)
class ReceiverState:
    """State that all connections share."""

    secrets: Mapping[str, str] = field(default_factory=dict)
    """``whsec_...`` (or ``whpk_...``) by path."""
    show: Callable[[Seen], None] = lambda seen: None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _tries: OrderedDict[tuple[str, str], int] = field(default_factory=OrderedDict)
    _taken: OrderedDict[tuple[str, str], int] = field(default_factory=OrderedDict)
    _tallies: dict[str, Tally] = field(default_factory=dict)

    def check(self, path: str, headers: Mapping[str, str], body: bytes) -> str:
        """Return ``valid``, ``unchecked`` or the reason."""
        key = self.secrets.get(path)
        if key is None:
            return "unchecked"
        try:
            signing.verify(key, headers, body, time.time())
        except signing.InvalidSignature as error:
            return str(error)
        return "valid"

    def try_number(self, path: str, message_id: str) -> int:
        """Return how often this message came to this path, this time included."""
        with self._lock:
            return _counted(self._tries, (path, message_id))

    def note(self, seen: Seen) -> None:
        """Count a request and show it."""
        with self._lock:
            has_tally = seen.path in self._tallies or len(self._tallies) < MAX_PATHS
            tally = self._tallies.setdefault(seen.path if has_tally else "other paths", Tally())
            tally.requests += 1
            tally.taken += 200 <= seen.status < 300
            tally.valid += seen.signature == "valid"
            tally.invalid += seen.signature not in {"valid", "unchecked"}
            tally.repeated += seen.repeated
            self.show(seen)

    def take(self, path: str, message_id: str) -> bool:
        """Remember a message as accepted; returns whether it already was."""
        with self._lock:
            return bool(message_id) and _counted(self._taken, (path, message_id)) > 1

    def stats(self) -> dict[str, dict[str, int]]:
        """Return the counts by path."""
        names = Tally.__slots__
        with self._lock:
            return {
                path: {name: getattr(tally, name) for name in names}
                for path, tally in sorted(self._tallies.items())
            }


class Server(ThreadingHTTPServer):
    """Serves each connection in a thread; threads end with the process."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], consumer: ReceiverState) -> None:
        self.consumer = consumer
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore disconnected clients, and print other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One persistent connection."""

    protocol_version = "HTTP/1.1"
    server_version = "Hookstation-receiver"
    sys_version = ""
    # Send head and body in one packet without delay: the response is buffered, and Nagle's
    # algorithm is off.
    wbufsize = -1
    disable_nagle_algorithm = True
    timeout = IDLE_S
    server: Server

    def do_GET(self) -> None:
        """Serve ``/stats``, or a description of this server."""
        if urlsplit(self.path).path == "/stats":
            text = json.dumps(self.server.consumer.stats())
            self._answer(200, text.encode(), content_type="application/json")
        else:
            self._answer(200, b"A consumer for trying things out. It takes POST requests.\n")

    def do_POST(self) -> None:
        """Check the request, respond and record it."""
        body = self._body()
        if body is None:
            return
        address = urlsplit(self.path)
        path, query = address.path, parse_qs(address.query)
        message_id = self.headers.get("webhook-id", "")
        signature = self.server.consumer.check(path, dict(self.headers.items()), body)
        if signature in {"valid", "unchecked"}:
            status = self._decide(path, query, message_id)
        else:
            status = 401
        if status is None:
            return
        ok = 200 <= status < 300
        seen = Seen(
            path=path,
            status=status,
            signature=signature,
            message_id=message_id,
            event_type=self.headers.get("hookstation-event-type", ""),
            attempt=self.headers.get("hookstation-attempt", ""),
            repeated=ok and self.server.consumer.take(path, message_id),
            size=len(body),
        )
        self.server.consumer.note(seen)
        if signature not in {"valid", "unchecked"}:
            self._answer(status, f"{signature}\n".encode())
        else:
            self._answer(status, b"ok\n" if ok else b"as asked\n", query=query)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the consumer shows requests."""

    def _decide(self, path: str, query: dict[str, list[str]], message_id: str) -> int | None:
        """Return the path's status after its delay; None for no response."""
        kind = path.strip("/").partition("/")[0]
        wanted = _number(query, "status", 500)
        if kind == "hang":
            time.sleep(MAX_PAUSE_S)
            self.close_connection = True
            return None
        if kind == "slow":
            time.sleep(min(_number(query, "ms", 500) / 1000, MAX_PAUSE_S))
        if kind == "failing":
            types = {each for text in query.get("types", ()) for each in text.split(",")}
            is_meant = not types or self.headers.get("hookstation-event-type", "") in types
            replayed = self.headers.get("hookstation-replay") == "true"
            return (
                wanted if is_meant and not (replayed and query.get("until") == ["replay"]) else 200
            )
        if kind == "recovering":
            tries = self.server.consumer.try_number(path, message_id)
            return wanted if tries <= _number(query, "after", 2) else 200
        return 200

    def _body(self) -> bytes | None:
        """Return the exact bytes, or None after an error response."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            self.close_connection = True
            self._answer(411, b"Content-Length is needed.\n")
            return None
        if int(length) > MAX_BODY_LENGTH:
            self.close_connection = True
            self._answer(413, b"Too large.\n")
            return None
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
            return None
        return body

    def _answer(
        self,
        status: int,
        body: bytes,
        *,
        query: Mapping[str, list[str]] | None = None,
        content_type: str = "text/plain; charset=utf-8",
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if status >= 300 and query and (wait := query.get("retry_after")):
            self.send_header("Retry-After", str(_number({"s": wait}, "s", 0)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def parse_secrets(lines: list[str]) -> dict[str, str]:
    """Parse ``PATH=whsec_...`` lines into a mapping; blank lines and comments (#) are skipped.

    Raises ValueError with a message that names the line and never the secret.
    """
    secrets: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        path, equals, key = text.partition("=")
        path = "/" + path.strip().strip("/")
        if not equals:
            raise ValueError(f"Secret {number} is not of the form /path=whsec_...")
        key = key.strip()
        try:
            (decode_public_key if key.startswith(PUBLIC) else decode_secret)(key)
        except ValueError as error:
            raise ValueError(f"Secret {number}, for {path}: {error}") from None
        secrets[path] = key
    return secrets


def _counted(counts: OrderedDict[tuple[str, str], int], key: tuple[str, str]) -> int:
    """Count one more of ``key``, and forget the oldest beyond the limit."""
    counts[key] = counts.pop(key, 0) + 1
    while len(counts) > REMEMBERED:
        counts.popitem(last=False)
    return counts[key]


def _number(query: Mapping[str, list[str]], name: str, default: int) -> int:
    text = query.get(name, [""])[0]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else default
