"""Pumps stopped by SIGSTOP, as by a paused machine: other pumps take over, and send once."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from delivery.processes.control import is_stopped
from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S, Failpoint, retry_until_done
from tests.support import broker as broker_module
from tests.support.broker import Broker, descendants, heard_ids, lives, wait_until
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.e2e, pytest.mark.mysql]
SETTINGS = {"HOOKSTATION_WEB_WORKERS": "1", "HOOKSTATION_SHUTDOWN_GRACE_S": "20"}
TAKEOVER_S = 5.0
LEASE_MS = 60_000
"""So long that no lease expires before the frozen pump wakes up."""


def register(broker: Broker, url: str) -> None:
    retry_until_done(broker, "PUT", "/channels/orders", json={})
    retry_until_done(
        broker, "PUT", "/channels/orders/consumers/one", json={"url": url, "timeout_ms": LEASE_MS}
    )


def publish(broker: Broker) -> str:
    return str(retry_until_done(broker, "POST", "/channels/orders/messages", data="x")[0]["id"])


def pumps(broker: Broker) -> list[int]:
    """Process ids of this broker's living pumps."""
    assert broker.process is not None
    rows = Counts(broker).read("SELECT pid FROM delivery_pumpslot WHERE kind = 'pump'")
    return [int(pid) for (pid,) in rows if int(pid) in descendants(broker.process.pid)]


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    """Send a signal to those processes that still exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def freeze(broker: Broker, pids: list[int]) -> None:
    """Stop processes, the supervisor first, while none of them holds a lock in the database."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        send(signal.SIGSTOP, pids)
        wait_until(lambda: not any(map(runs, pids)), TIMEOUT_S, "a process does not stop")
        if Counts(broker).is_unlocked():
            return
        # The supervisor last: it kills children that it finds stopped at two checks.
        send(signal.SIGCONT, reversed(pids))
        assert time.monotonic() < end, "the database is always locked"
        time.sleep(0.1)


def runs(pid: int) -> bool:
    """Whether a process has neither stopped, which takes the kernel a moment, nor ended."""
    return lives(pid) and not is_stopped(pid)


@pytest.mark.trap("a stopped worker")
@pytest.mark.slow("starts a broker")
def test_two_frozen_pumps_are_replaced_within_seconds(tmp_path: Path, receiver: Receiver) -> None:
    settings = {**SETTINGS, "HOOKSTATION_PUMPS": "2"}
    with broker_module.running(tmp_path, **settings) as broker:
        register(broker, receiver.url("/ok"))
        wait_until(lambda: len(pumps(broker)) == 2, TIMEOUT_S, "no two pumps", broker.log)
        first = publish(broker)
        counts = Counts(broker)
        wait_until(lambda: not counts.open_count(), TIMEOUT_S, "nothing is sent", broker.log)
        frozen = pumps(broker)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)

        began, second = time.monotonic(), publish(broker)
        wait_until(
            lambda: second in heard_ids(receiver, "/ok"),
            TIMEOUT_S,
            "nobody takes over",
            broker.log,
        )

        assert time.monotonic() - began < TAKEOVER_S
        wait_until(lambda: not any(map(lives, frozen)), TIMEOUT_S, "a frozen pump lives on")
        wait_until(lambda: not counts.open_count(), TIMEOUT_S, "rows stay open", broker.log)
        counts.check()
        assert heard_ids(receiver, "/ok") == [first, second]


@pytest.mark.trap("a stopped worker")
@pytest.mark.slow("starts two brokers, and waits until one is thought dead")
def test_a_continued_pump_sends_no_deliveries_that_others_took_over(
    tmp_path: Path, receiver: Receiver
) -> None:
    """A pump freezes before a request; another host sends the message; the first pump wakes up."""
    failpoint = Failpoint(tmp_path)
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    settings = SETTINGS | failpoint.setting
    with broker_module.running(mine, **settings) as broker:
        register(broker, receiver.url("/ok"))
        (frozen,) = pumps(broker)
        assert broker.process is not None
        # The frozen pump's own host must not reap it.
        everybody = [broker.process.pid, *descendants(broker.process.pid)]
        web = [pid for pid in everybody if "granian" in broker_module.title(pid)]
        others = [pid for pid in everybody if pid not in (*web, frozen)]
        other = Broker(theirs, broker.environment["DATABASE_URL"], **SETTINGS)
        other.http.headers.update(broker.http.headers)
        try:
            with failpoint.armed(broker, "before_send SIGSTOP"):
                freeze(broker, others)
                message = publish(broker)
            other.start()
            wait_until(
                lambda: message in heard_ids(receiver, "/ok"), TIMEOUT_S, "nobody sends", other.log
            )
            os.kill(frozen, signal.SIGCONT)
            wait_until(lambda: not lives(frozen), TIMEOUT_S, "it goes on", broker.log)
            counts = Counts(broker)
            wait_until(lambda: not counts.open_count(), TIMEOUT_S, "rows stay open", other.log)
            counts.check()
            assert heard_ids(receiver, "/ok") == [message]
        finally:
            send(signal.SIGCONT, reversed(others))
            other.end()
