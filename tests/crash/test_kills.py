"""Processes killed or stopped while messages flow: no message is lost, no failure is charged."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker

from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S, retry_until_done
from tests.crash.traffic import flowing
from tests.support import broker as broker_module
from tests.support.broker import Broker, descendants, heard_ids, wait_until
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.e2e, pytest.mark.mysql]
GRACE_S = 20
SETTINGS = {
    "HOOKSTATION_WEB_WORKERS": "1",
    "HOOKSTATION_SHUTDOWN_GRACE_S": str(GRACE_S),
    "HOOKSTATION_LEASE_GRACE_MS": "2000",
}
_numbers = count(1)


@pytest.fixture(scope="module")
def started(
    tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker
) -> Iterator[Broker]:
    """The broker that all tests of the file share."""
    folder = tmp_path_factory.mktemp("kills")
    with django_db_blocker.unblock(), broker_module.running(folder, **SETTINGS) as broker:
        yield broker


@pytest.fixture
def broker(started: Broker) -> Broker:
    """The broker, started again if an earlier test stopped it."""
    if started.process is None or started.process.poll() is not None:
        started.start()
    return started


@pytest.fixture
def channel(broker: Broker, receiver: Receiver) -> str:
    """A channel with a consumer that takes 200 ms for each request."""
    name = f"kills-{next(_numbers)}"
    retry_until_done(broker, "PUT", f"/channels/{name}", json={})
    values = {"url": receiver.url("/slow?ms=200"), "timeout_ms": 2000, "max_in_flight": 16}
    retry_until_done(broker, "PUT", f"/channels/{name}/consumers/one", json=values)
    return name


def check(broker: Broker, receiver: Receiver, acknowledged: set[str]) -> int:
    """Check that all messages arrived and all counters are right; return how many repeated."""
    counts = Counts(broker)
    wait_until(lambda: not counts.open_count(), TIMEOUT_S, "rows stay open", broker.log)
    counts.check()
    heard = Counter(heard_ids(receiver, "/slow"))
    assert acknowledged <= heard.keys()
    return sum(number > 1 for number in heard.values())


def victim(broker: Broker, kind: str) -> int:
    """The process id of a living process of this kind."""
    if kind in {"pump", "maintenance"}:
        wait_until(lambda: bool(_living(broker, kind)), TIMEOUT_S, f"no {kind} has a slot")
        return _living(broker, kind)[0]
    assert broker.process is not None
    word = {"web": "granian", "worker": "qcluster"}[kind]
    found = [pid for pid in descendants(broker.process.pid) if word in title(pid)]
    return next(pid for pid in found if set(descendants(pid)) & set(found))


def _living(broker: Broker, kind: str) -> list[int]:
    """Process ids of this kind with a registration that live; dead ones may still have one."""
    slots = Counts(broker).read("SELECT kind, pid FROM delivery_pumpslot")
    return [int(pid) for held_as, pid in slots if held_as == kind and lives(int(pid))]


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["web", "pump", "maintenance", "worker"])
def test_kill_9_under_load_loses_nothing(
    broker: Broker, receiver: Receiver, channel: str, kind: str
) -> None:
    with flowing(channel, broker) as traffic:
        traffic.wait_for_more(10)
        dead = victim(broker, kind)
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: not lives(dead), 5, "it lives on")
        traffic.wait_for_more(10)
    twice = check(broker, receiver, traffic.acknowledged)
    if kind in {"web", "maintenance"}:
        assert twice == 0


def test_a_second_broker_takes_over_where_a_killed_one_left(
    broker: Broker, receiver: Receiver, channel: str
) -> None:
    assert broker.process is not None
    with flowing(channel, broker) as traffic:
        traffic.wait_for_more(10)
        everybody = [broker.process.pid, *descendants(broker.process.pid)]
        os.kill(broker.process.pid, signal.SIGKILL)
        broker.process.wait()
        wait_until(lambda: not any(map(lives, everybody)), 10, "somebody lives on")
        broker.start()
        traffic.wait_for_more(10)
    check(broker, receiver, traffic.acknowledged)


def test_a_stop_under_load_releases_everything_in_time(
    broker: Broker, receiver: Receiver, channel: str
) -> None:
    counts = Counts(broker)
    with flowing(channel, broker) as traffic:
        # The stop must not wait for a maintenance process that was killed.
        os.kill(victim(broker, "maintenance"), signal.SIGKILL)
        traffic.wait_for_more(10)
        began = time.monotonic()
        assert broker.stop(seconds=GRACE_S + 10) == 0
        assert time.monotonic() - began < GRACE_S
        held = "SELECT COUNT(*) FROM delivery_delivery WHERE state = 'in_flight'"
        assert counts.number(held) == 0
        # The killed maintenance process's registration may stay until its heartbeat is old.
        assert counts.number("SELECT COUNT(*) FROM delivery_pumpslot WHERE kind = 'pump'") == 0
        broker.start()
        traffic.wait_for_more(10)
    assert check(broker, receiver, traffic.acknowledged) == 0


@pytest.mark.seed("S4-18", "S4-37")
def test_two_brokers_on_one_database_share_the_work_until_one_is_killed(
    broker: Broker, receiver: Receiver, channel: str, tmp_path: Path
) -> None:
    for number in range(8):
        values = {"url": receiver.url("/ok"), "timeout_ms": 2000}
        retry_until_done(broker, "PUT", f"/channels/{channel}/consumers/more-{number}", json=values)
    other = Broker(tmp_path, broker.environment["DATABASE_URL"], **SETTINGS)
    other.http.headers.update(broker.http.headers)
    try:
        other.start()
        assert other.process is not None
        with flowing(channel, broker, other) as traffic:
            traffic.wait_for_more(20)
            wait_until(lambda: len(_workers(broker)) == 2, TIMEOUT_S, "one of them does nothing")
            os.kill(other.process.pid, signal.SIGKILL)
            other.process.wait()
            other.port = broker.port  # as a load balancer would do
            other.base = broker.base
            traffic.wait_for_more(20)
    finally:
        other.http.close()
        if other.process is not None and other.process.poll() is None:
            other.stop()
    check(broker, receiver, traffic.acknowledged)
    assert set(heard_ids(receiver, "/ok")) >= traffic.acknowledged


def _workers(broker: Broker) -> set[str]:
    """The pumps that made the last 40 attempts."""
    rows = Counts(broker).read("SELECT worker FROM delivery_attempt ORDER BY id DESC LIMIT 40")
    return {str(worker) for (worker,) in rows}
