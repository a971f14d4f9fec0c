"""Kill a process of a running broker at a named step, and retry requests meanwhile."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from tests.support.broker import Broker, wait_until

TIMEOUT_S = 300.0
AWAY = {502, 503, 504}


class Failpoint:
    """The file that tells a broker at which step to die (channels_app/failpoints.py)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._path = Path(broker.environment["HOOKSTATION_FAILPOINT"])
        self._reached = self._path.with_suffix(".reached")

    @contextmanager
    def armed(self, name: str) -> Iterator[None]:
        """Kill the process that reaches the step inside the block; wait until one has."""
        self._reached.unlink(missing_ok=True)
        draft = self._path.with_suffix(".draft")
        draft.write_text(name)
        os.rename(draft, self._path)
        try:
            yield
            wait_until(self.was_reached, TIMEOUT_S, f"nobody reached {name}", self._broker.log)
        finally:
            self._path.unlink(missing_ok=True)

    def was_reached(self) -> bool:
        """Whether a process has died at the step."""
        return self._reached.exists()


def retry_until_done(broker: Broker, method: str, path: str, **options: Any) -> tuple[Any, int]:
    """Call until there is a response, as producers should. Returns its JSON and the tries.

    The path is one of the API, or a whole URL.
    """
    url = path if path.startswith("http:") else f"{broker.base}{path}"
    end = time.monotonic() + TIMEOUT_S
    for tries in range(1, 10_000):
        try:
            answer = requests.request(
                method,
                url,
                headers={**broker.http.headers, **options.get("headers", {})},
                **{name: value for name, value in options.items() if name != "headers"},
                timeout=60,
            )
            if answer.status_code not in AWAY:
                assert answer.ok, (method, path, answer.status_code, answer.text)
                return (answer.json() if answer.content else None), tries
        except requests.ConnectionError:
            pass
        assert time.monotonic() < end, f"{method} {path}: no answer\n{broker.log()[-3000:]}"
        time.sleep(0.1)
    raise AssertionError("unreachable")
