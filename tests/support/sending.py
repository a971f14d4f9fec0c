"""Provide a sender with an event loop like a pump's, for tests that send real requests."""

import selectors
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from channels_app.core.networks import Networks, parse_networks
from delivery.transport import Call, Response, Sender

LOOPBACK = parse_networks("127.0.0.0/8, ::1")
EXCERPT_BYTES = 1000
MAX_ANSWER_BYTES = 20_000
_PATIENCE_S = 120.0
_KEYS = count(1)


class Loop:
    """A sender with a selector of its own, and an event loop like a pump's."""

    def __init__(
        self,
        *,
        allowed: Networks = LOOPBACK,
        ca_file: str | None = None,
        max_connections: int = 1024,
    ) -> None:
        self.selector = selectors.DefaultSelector()
        self.sender = Sender(
            allowed=allowed,
            excerpt_bytes=EXCERPT_BYTES,
            max_response_bytes=MAX_ANSWER_BYTES,
            ca_file=ca_file,
            max_connections=max_connections,
        )
        self.selector.register(self.sender, selectors.EVENT_READ)
        self._resting = self._watched()

    @property
    def watched(self) -> int:
        """Number of sockets that the kernel watches."""
        return self._watched() - self._resting

    def _watched(self) -> int:
        said = Path(f"/proc/self/fdinfo/{self.sender.fileno()}").read_text(encoding="ascii")
        return said.count("tfd:")

    def ready(self, seconds: float) -> None:
        """Handle sockets that the selector reports as ready, as a pump does."""
        for key, _ in self.selector.select(seconds):
            assert key.fileobj is self.sender
            self.sender.ready()

    def turn(self) -> list[Response]:
        """Run one round: wait briefly, advance the calls, and return responses."""
        patience = self.sender.next_timeout()
        self.ready(0.1 if patience is None else min(patience, 0.1))
        self.sender.on_timer()
        return self.sender.take()

    def run(self, *calls: Call, left: int = 0) -> list[Response]:
        """Start all calls at once; returns responses in their order, as `finish` does."""
        for call in calls:
            self.sender.start(call)
        return self.finish(left)

    def finish(self, left: int = 0) -> list[Response]:
        """Return responses, by key, until only ``left`` calls are in flight."""
        answers: list[Response] = []
        deadline = time.monotonic() + _PATIENCE_S
        while self.sender.in_flight > left:
            assert time.monotonic() < deadline, f"{self.sender.in_flight} calls have no answer"
            answers += self.turn()
        return sorted(answers, key=lambda answer: answer.key)

    def until(self, arrived: Callable[[], bool]) -> None:
        """Run rounds until a condition outside is true."""
        deadline = time.monotonic() + _PATIENCE_S
        while not arrived():
            assert time.monotonic() < deadline
            assert self.turn() == []

    def post(self, url: str, **changes: Any) -> Response:
        """Return the response to one call."""
        (answer,) = self.run(a_call(url, **changes))
        return answer

    def close(self) -> None:
        self.selector.close()
        self.sender.close()


def a_call(url: str, **changes: Any) -> Call:
    """Return a call whose timeouts only a fault exceeds."""
    call = Call(
        key=next(_KEYS),
        url=url,
        headers=[("Content-Type", "application/json"), ("User-Agent", "Hookstation/test")],
        body=b'{"n": 1}',
        timeout_ms=60_000,
        connect_timeout_ms=60_000,
    )
    return call._replace(**changes)
