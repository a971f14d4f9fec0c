"""Define the interface between the harness and a broker, so that other brokers can be compared.

A class with the members of ``Broker``, named by ``--beside package.module:Class``, is enough. It is
created with the URL of an empty database (`mysql://...` or `sqlite:///...`; a broker with a
database of its own may ignore it) and an empty folder for its files.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Pack = Callable[[Sequence[bytes]], bytes]


class BenchError(Exception):
    """A failure that invalidates a figure; the table shows the message instead."""


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
    """Builds the request body for messages that are JSON objects in UTF-8. It must be a function
    at the top level of a module, since the load generator is a process of its own."""
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


def one(bodies: Sequence[bytes]) -> bytes:
    """Return the body of a request with one message."""
    return bodies[0]
