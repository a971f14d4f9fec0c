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
from tests.crash.failpoint import TIMEOUT_S, Failpoint
from tests.crash.hosts import another_host
from tests.crash.place import Place
from tests.support import broker as broker_module
from tests.support.broker import Broker, descendants, lives, wait_until
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.e2e, pytest.mark.mysql]
SETTINGS = {"HOOKSTATION_WEB_WORKERS": "1", "HOOKSTATION_SHUTDOWN_GRACE_S": "20"}
TAKEOVER_S = 5.0
LEASE_MS = 60_000
"""So long that no lease expires before the frozen pump wakes up."""


def pumps(broker: Broker) -> list[int]:
    """Process ids of this broker's living pumps."""
    assert broker.process is not None
    mine = descendants(broker.process.pid)
    return [pid for pid in Counts(broker).living("pump") if pid in mine]


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
        place = Place(broker, Failpoint(broker), receiver)
        place.register(timeout_ms=LEASE_MS)
        place.wait_until(lambda: len(pumps(broker)) == 2, "no two pumps")
        place.publish("first")
        place.settle()
        frozen = pumps(broker)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)

        began, second = time.monotonic(), place.publish("second")
        place.wait_until(lambda: second in place.arrivals(), "nobody takes over")

        assert time.monotonic() - began < TAKEOVER_S
        place.wait_until(lambda: not any(map(lives, frozen)), "a frozen pump lives on")
        place.settle()
        assert place.arrivals() == place.published


@pytest.mark.trap("a stopped worker")
@pytest.mark.slow("starts two brokers, and waits until one is thought dead")
def test_a_continued_pump_sends_no_deliveries_that_others_took_over(
    tmp_path: Path, receiver: Receiver
) -> None:
    """A pump freezes before a request; another host sends the message; the first pump wakes up."""
    with broker_module.running(tmp_path, **SETTINGS) as broker:
        place = Place(broker, Failpoint(broker), receiver, step="before_send SIGSTOP")
        place.register(timeout_ms=LEASE_MS)
        (frozen,) = pumps(broker)
        assert broker.process is not None
        # The frozen pump's own host must not reap it.
        everybody = [broker.process.pid, *descendants(broker.process.pid)]
        web = [pid for pid in everybody if "granian" in broker_module.title(pid)]
        others = [pid for pid in everybody if pid not in (*web, frozen)]
        try:
            with place.dying():
                freeze(broker, others)
                place.publish("x")
            with another_host(broker, tmp_path / "other", **SETTINGS):
                place.wait_until(place.arrivals, "nobody sends")
                os.kill(frozen, signal.SIGCONT)
                place.wait_until(lambda: not lives(frozen), "it goes on")
                place.settle()
                assert place.arrivals() == place.published
        finally:
            send(signal.SIGCONT, reversed(others))
