"""The clock of the broker's processes steps back and forward while messages flow."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connection

from tests.crash.failpoint import Failpoint
from tests.crash.place import Place
from tests.support import broker as broker_module
from tests.support.receiver import Receiver

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not LIBRARIES, reason="needs Debian's libfaketime: tools/apt libfaketime"),
]
HOUR_S = 3600


class Clock:
    """The clock of the broker's processes; the database server keeps the machine's."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "clock"
        self.step(0)

    @property
    def settings(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # With a limit the pumps would stop claiming at an offset of an hour.
            "HOOKSTATION_MAX_CLOCK_OFFSET_S": "0",
        }

    def step(self, seconds: int) -> None:
        """Step the clock to ``seconds`` ahead of the real time."""
        draft = self._path.with_suffix(".draft")
        draft.write_text(f"{seconds:+d}")
        os.rename(draft, self._path)


@contextmanager
def delayed(place: Place) -> Iterator[None]:
    """Publish a message with a delay of a second; it must arrive after it and not before."""
    before = time.monotonic()
    message_id = place.publish(f"later-{before}", delay_ms=1000)

    def arrived() -> list[float]:
        found = place.receiver.requests()
        return [it.at for it in found if it.header("webhook-id") == message_id]

    yield
    place.wait_until(arrived, "what was delayed did not come")
    assert arrived()[0] - before >= 1.0


@pytest.mark.seed("S4-17", "S4-31")
def test_steps_of_the_clock_lose_nothing_and_send_nothing_early(
    tmp_path: Path, receiver: Receiver
) -> None:
    clock = Clock(tmp_path)
    with broker_module.running(tmp_path, **clock.settings) as broker:
        place = Place(broker, Failpoint(broker), receiver)
        place.register(timeout_ms=2000)
        # SQLite uses the processes' clock: after a step back, work in progress waits until the same
        # time comes again. So on SQLite the clock steps back before the traffic, then only forward.
        has_own_clock = connection.vendor == "mysql"
        clock.step(-HOUR_S)
        with place.traffic(producers=2) as traffic:
            for seconds in (HOUR_S, -HOUR_S, 0) if has_own_clock else (0, HOUR_S):
                traffic.flows()
                clock.step(seconds)
                traffic.flows()
                if has_own_clock:
                    with delayed(place):
                        traffic.flows()
        place.settle()
        assert set(place.arrivals()) >= traffic.acknowledged
