"""Kill a process of a running broker at a named step, and retry requests meanwhile."""

import os
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.broker import Broker, wait_until

TIMEOUT_S = 300.0
AWAY = {502, 503, 504}


def at(*points: str | tuple[object, ...], smoke: Container[object] = ()) -> list[Any]:
    """Return parameters: the name of a failpoint, or a tuple that begins with one.

    Those inside a transaction also run on MariaDB, whose server rolls it back and holds its locks
    until then. What follows a kill between two transactions does not depend on the database.
    Those named in ``smoke`` are part of `make test`.
    """

    def marks(name: object) -> list[pytest.MarkDecorator]:
        on_mariadb = [pytest.mark.mysql] if str(name).startswith("in_") else []
        return on_mariadb + ([pytest.mark.smoke] if name in smoke else [])

    rows = [point if isinstance(point, tuple) else (point,) for point in points]
    return [pytest.param(*row, marks=marks(row[0])) for row in rows]


class Failpoint:
    """The file that tells a broker at which step to die (channels_app/failpoints.py)."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "failpoint"
        self._reached = folder / "failpoint.reached"

    @property
    def setting(self) -> dict[str, str]:
        """The environment variable to start the broker with."""
        return {"HOOKSTATION_FAILPOINT": str(self._path)}

    @contextmanager
    def armed(self, broker: Broker, name: str) -> Iterator[None]:
        """Kill the process that reaches the step inside the block; wait until one has."""
        self._reached.unlink(missing_ok=True)
        draft = self._path.with_suffix(".draft")
        draft.write_text(name)
        os.rename(draft, self._path)
        try:
            yield
            wait_until(self.was_reached, TIMEOUT_S, f"nobody reached {name}", broker.log)
        finally:
            self._path.unlink(missing_ok=True)

    def was_reached(self) -> bool:
        """Whether a process has died at the step."""
        return self._reached.exists()


def retry_until_done(broker: Broker, method: str, path: str, **options: Any) -> tuple[Any, int]:
    """Call until there is a response, as producers should. Returns its JSON and the tries."""
    end = time.monotonic() + TIMEOUT_S
    for tries in range(1, 10_000):
        try:
            answer = requests.request(
                method,
                f"{broker.base}{path}",
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
