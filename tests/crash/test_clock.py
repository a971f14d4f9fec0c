"""The clock of the broker's processes steps back and forward while messages flow."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connection

from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S, retry_until_done
from tests.crash.traffic import flowing
from tests.support import broker as broker_module
from tests.support.broker import Broker, wait_until
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
def delayed(broker: Broker, receiver: Receiver, channel: str, seconds: float) -> Iterator[None]:
    """Publish a message with a delay; it must arrive after the delay and not before."""
    headers = {"Hookstation-Delay": f"{seconds * 1000:.0f}"}
    path = f"/channels/{channel}/messages"
    before = time.monotonic()
    answer, _ = retry_until_done(broker, "POST", path, data="later", headers=headers)

    def arrived() -> list[float]:
        found = receiver.requests("/ok")
        return [it.at for it in found if it.header("webhook-id") == answer["id"]]

    yield
    wait_until(lambda: bool(arrived()), TIMEOUT_S, "what was delayed did not come", broker.log)
    assert arrived()[0] - before >= seconds


@pytest.mark.seed("S4-17", "S4-31")
def test_steps_of_the_clock_lose_nothing_and_send_nothing_early(
    tmp_path: Path, receiver: Receiver
) -> None:
    clock = Clock(tmp_path)
    with broker_module.running(tmp_path, **clock.settings) as broker:
        retry_until_done(broker, "PUT", "/channels/steps", json={})
        values = {"url": receiver.url("/ok"), "timeout_ms": 2000}
        retry_until_done(broker, "PUT", "/channels/steps/consumers/one", json=values)
        # SQLite uses the processes' clock: after a step back, work in progress waits until the same
        # time comes again. So on SQLite the clock steps back before the traffic, then only forward.
        has_own_clock = connection.vendor == "mysql"
        clock.step(-HOUR_S)
        with flowing("steps", broker, producers=2) as traffic:
            for seconds in (HOUR_S, -HOUR_S, 0) if has_own_clock else (0, HOUR_S):
                traffic.wait_for_more(10)
                clock.step(seconds)
                traffic.wait_for_more(10)
                if has_own_clock:
                    with delayed(broker, receiver, "steps", 1.0):
                        traffic.wait_for_more(10)
        counts = Counts(broker)
        wait_until(lambda: not counts.open_count(), TIMEOUT_S, "rows stay open", broker.log)
        heard = {it.header("webhook-id") for it in receiver.requests("/ok")}
        assert heard >= traffic.acknowledged
        counts.check()
