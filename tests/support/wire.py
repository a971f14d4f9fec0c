"""Run a real web server, and send requests byte by byte that no HTTP library would send."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from json import loads
from pathlib import Path
from typing import Self

import requests

from tests.support.broker import Broker, database_with_key

PATIENCE_S = 15.0
HEADERS_MS = 2000
"""Milliseconds that the server waits for the end of the headers; by default half a minute."""


class Web(Broker):
    """The web server alone: accepted messages are not delivered."""

    def is_ready(self) -> bool:
        """Whether it accepts messages."""
        url = f"http://127.0.0.1:{self.port}/readyz?exclude=pumps"
        try:
            return requests.get(url, timeout=2).ok
        except requests.RequestException:
            return False

    def send(
        self,
        target: str | bytes,
        *lines: str | bytes,
        method: str = "GET",
        body: bytes = b"",
        authorized: bool = True,
    ) -> "Reply":
        """Return the response to a request with exactly these header lines."""
        given = [f"Authorization: Bearer {self.key}"] if authorized else []
        data = request(method, target, "Host: 127.0.0.1", *given, *lines) + body
        with Wire(self.port) as wire:
            wire.send(data)
            return wire.read(method)


@dataclass(frozen=True, slots=True)
class Reply:
    """A response."""

    status: int
    headers: dict[str, str]
    """By name in lower case."""
    body: bytes

    @property
    def code(self) -> str:
        """The code of a complete problem; '' for any other response."""
        if self.headers.get("content-type") != "application/problem+json":
            return ""
        problem = loads(self.body)
        assert problem["status"] == self.status
        assert " " in problem["detail"]
        return str(problem["code"])


def request(method: str, target: str | bytes, *lines: str | bytes) -> bytes:
    """Return the bytes of a request up to its body."""
    first = method.encode() + b" " + _bytes(target) + b" HTTP/1.1"
    return b"\r\n".join([first, *map(_bytes, lines), b"", b""])


class Wire:
    """A connection, with received bytes that are not read yet."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._came = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._sock.close()

    def send(self, data: bytes, *, end: bool = False) -> None:
        """Send all bytes; ``end`` closes this side."""
        self._sock.sendall(data)
        if end:
            self._sock.shutdown(socket.SHUT_WR)

    def read(self, method: str = "GET") -> Reply:
        """Read the next response. Raises OSError if there is none."""
        while True:
            first, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            status = int(first.split()[1])
            if status != 100:
                break
        pairs = (line.split(": ", 1) for line in lines if line)
        headers = {name.lower(): value for name, value in pairs}
        without = method == "HEAD" or status in {204, 304}
        return Reply(
            status, headers, b"" if without else self._take(int(headers["content-length"]))
        )

    def is_closed(self) -> bool:
        """Whether the server closed the connection without sending more."""
        try:
            return not self._came and self._sock.recv(65536) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._came:
            self._more()
        return self._take(self._came.index(mark) + len(mark))

    def _take(self, size: int) -> bytes:
        while len(self._came) < size:
            self._more()
        taken, self._came = self._came[:size], self._came[size:]
        return taken

    def _more(self) -> None:
        more = self._sock.recv(65536)
        if not more:
            raise ConnectionError(f"closed after {self._came!r}")
        self._came += more


@contextmanager
def serving(folder: Path, **settings: str) -> Iterator[Web]:
    """Run a web server on a fresh database of the kind that this test run uses."""
    with database_with_key(folder) as (url, key):
        web = Web(folder, url, **settings)
        web.use(key)
        try:
            web.start("--role", "web")
            yield web
        finally:
            web.end()


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
