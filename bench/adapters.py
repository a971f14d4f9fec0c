"""What the harness has to know of a broker, so that another one can be put beside ours.

A class with these members, named by ``--beside package.module:Class``, is all it takes. It is made
with the address of an empty database (`mysql://...` or `sqlite:///...`; one that has its own may
leave it alone) and an empty folder for whatever it writes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Pack = Callable[[Sequence[bytes]], bytes]


class BenchError(Exception):
    """Something that makes a figure worthless; the sentence is shown in its place."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """An endpoint that wants every message."""

    name: str
    url: str
    timeout_ms: int = 15_000
    """How long the broker waits for an answer."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """More of ours; another broker leaves them alone."""


@dataclass(frozen=True, slots=True)
class Route:
    """How messages are handed in: HTTP/1.1 POST requests, each with a few messages."""

    host: str
    port: int
    path: str
    headers: Mapping[str, str]
    """All but Host and Content-Length."""
    pack: Pack
    """The request's body for messages that are JSON objects in UTF-8. A function at the top level
    of a module, since the load generator is a process of its own."""
    accepted: tuple[int, ...] = (202,)
    """Answers that mean: every message of the request is stored."""


class Broker(Protocol):
    """A broker that can be measured. Methods raise BenchError when something does not work."""

    name: str

    def __init__(self, database_url: str, folder: Path) -> None: ...

    def start(self) -> None:
        """Start it and return when it accepts and delivers; also after `kill`."""

    def prepare(self, consumers: Sequence[Consumer]) -> None:
        """From now on exactly these get every message that is handed in; earlier ones get none."""

    def single(self) -> Route:
        """One message in each request."""

    def batch(self) -> Route | None:
        """Many messages in each request; None when it cannot."""

    def processes(self) -> Mapping[str, Sequence[int]]:
        """Ids of its processes by group, now. ``web`` is what accepts; with a database server of
        its own, ``database`` is that."""

    def kill(self) -> None:
        """End all its processes at once with SIGKILL, but not its database."""

    def stop(self) -> None:
        """End it, whatever state it is in; twice is fine."""


def one(bodies: Sequence[bytes]) -> bytes:
    """The body of a request that is one message."""
    return bodies[0]
