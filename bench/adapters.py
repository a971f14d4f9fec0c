"""Define the interface between the harness and a broker, so that other brokers can be compared.

A class with the members of ``Broker``, named by ``--beside package.module:Class``, is enough. It is
created with the URL of an empty database (`mysql://...` or `sqlite:///...`; a broker with a
database of its own may ignore it) and an empty folder for its files.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Pack = Callable[[Sequence[bytes]], bytes]
Progress = Callable[[int, int], None]
"""Called with the numbers of completed and of expected items."""
BODY_BYTES = 1024
MARK = b"bench-message-"
DIGITS = 12


class BenchError(Exception):
    """A failure that invalidates a figure; the table shows the message instead."""


def no_progress(done: int, total: int) -> None:
    """A ``Progress`` that reports nothing."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """An endpoint that receives every message."""

    name: str
    url: str
    timeout_ms: int = 15_000
    """Milliseconds that the broker waits for a response."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of Hookstation; other brokers ignore them."""


@dataclass(frozen=True, slots=True)
class Route:
    """How messages are published: HTTP/1.1 POST requests with one or more messages each."""

    host: str
    port: int
    path: str
    headers: Mapping[str, str]
    """All headers except Host and Content-Length."""
    pack: Pack
    """Builds the request body for messages that are JSON objects in UTF-8. It must be picklable,
    since the load generator is a process of its own."""
    accepted: tuple[int, ...] = (202,)
    """Status codes that mean: every message of the request is stored."""


class Broker(Protocol):
    """A broker to measure. Methods raise BenchError on failure."""

    name: str

    def __init__(self, database_url: str, folder: Path) -> None: ...

    def start(self) -> None:
        """Start the broker; return when it accepts and delivers. Also called after `kill`."""

    def prepare(self, consumers: Sequence[Consumer]) -> None:
        """Register exactly these consumers; earlier ones receive no further messages."""

    def single(self) -> Route:
        """Route with one message per request."""

    def batch(self) -> Route | None:
        """Route with many messages per request; None if the broker has none."""

    def processes(self) -> Mapping[str, Sequence[int]]:
        """Present process ids by group.

        ``web`` is the group that accepts messages; ``database`` is the database server, if the
        broker has its own.
        """

    def kill(self) -> None:
        """Kill all processes of the broker at once with SIGKILL, but not its database."""

    def stop(self) -> None:
        """Stop the broker in any state; may be called twice."""


def body(number: int, size: int = BODY_BYTES) -> bytes:
    """Return the message with this number: a JSON object of `size` bytes."""
    head = b'{"number":"%s%012d","filling":"' % (MARK, number)
    return head + b"x" * (size - len(head) - 2) + b'"}'


def number_in(text: bytes) -> int | None:
    """Return the number of the message in a request's body, in any envelope."""
    at = text.find(MARK)
    digits = text[at + len(MARK) : at + len(MARK) + DIGITS]
    return int(digits) if at >= 0 and len(digits) == DIGITS and digits.isdigit() else None


def one(bodies: Sequence[bytes]) -> bytes:
    """Return the body of a request with one message."""
    return bodies[0]


@dataclass(frozen=True, slots=True)
class PackBatch:
    """Builds the array of Hookstation's batch endpoint."""

    fields: Sequence[Mapping[str, Any]] = ({},)
    """Further fields of the items: message n has those at n modulo their number."""

    def __call__(self, bodies: Sequence[bytes]) -> bytes:
        items = [
            {"body": it.decode(), **self.fields[(number_in(it) or 0) % len(self.fields)]}
            for it in bodies
        ]
        return json.dumps(items).encode()
