"""Processes killed or stopped while messages flow: no message is lost, no failure is charged."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S, retry_until_done
from tests.crash.traffic import flowing
from tests.support import broker as broker_module
from tests.support.broker import Broker, descendants, heard_ids, lives, title, wait_until
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.e2e, pytest.mark.mysql]
GRACE_S = 60
REQUEST_MS = 5000
"""Every failure that a delivery is charged fails the test, so no request may time out: with nine
consumers on a busy machine, requests have taken 1.4 s."""
SETTINGS = {
    "HOOKSTATION_WEB_WORKERS": "1",
    "HOOKSTATION_SHUTDOWN_GRACE_S": str(GRACE_S),
    "HOOKSTATION_LEASE_GRACE_MS": "2000",
}
SCHEDULE = "/channels/ticks/schedules/tick"
SECONDS = 12
MAINTENANCE_PROCESSES = "SELECT pid FROM delivery_pumpslot WHERE kind = 'maintenance'"
KEYS = (
    "SELECT idempotency_key, accepted_at FROM channels_app_message"
    " WHERE idempotency_key LIKE 'schedule:tick:%' ORDER BY id"
)
_numbers = count(1)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that all tests of the file share."""
    folder = tmp_path_factory.mktemp("kills")
    with broker_module.running(folder, **SETTINGS) as broker:
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
    values = {"url": receiver.url("/slow?ms=200"), "timeout_ms": REQUEST_MS, "max_in_flight": 16}
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


def test_a_stop_under_load_answers_long_polls_and_releases_everything_in_time(
    broker: Broker, receiver: Receiver, channel: str
) -> None:
    counts = Counts(broker)
    with flowing(channel, broker) as traffic:
        # The stop must not wait for a maintenance process that was killed.
        os.kill(victim(broker, "maintenance"), signal.SIGKILL)
        traffic.wait_for_more(10)
        with ThreadPoolExecutor(2) as pool:
            polls = long_polls(broker, pool)
            began = time.monotonic()
            assert broker.stop(seconds=GRACE_S + 30) == 0, broker.log()[-5000:]
            assert time.monotonic() - began < GRACE_S, broker.log()[-5000:]
        assert [poll.result()[:2] for poll in polls] == [(200, [])] * 2
        # Without the stop they would have waited 20 s.
        assert max(poll.result()[2] for poll in polls) < began + 15
        held = "SELECT COUNT(*) FROM delivery_delivery WHERE state = 'in_flight'"
        assert counts.number(held) == 0
        # The killed maintenance process's registration may stay until its heartbeat is old.
        assert counts.number("SELECT COUNT(*) FROM delivery_pumpslot WHERE kind = 'pump'") == 0
        broker.start()
        traffic.wait_for_more(10)
    assert check(broker, receiver, traffic.acknowledged) == 0


def long_polls(
    broker: Broker, pool: ThreadPoolExecutor
) -> list[Future[tuple[int, list[Any], float]]]:
    """Begin two receive calls without messages; return them when both wait.

    Each returns the status, the messages, and when the response came (monotonic).
    """
    path = f"/channels/idle-{next(_numbers)}"
    broker.call("PUT", path, 201, json={})
    broker.call("PUT", f"{path}/consumers/one", 201, json={"mode": "pull"})

    def poll() -> tuple[int, list[Any], float]:
        answer = requests.post(
            f"{broker.base}{path}/consumers/one/receive",
            json={"wait_s": 20},
            headers=broker.http.headers,
            timeout=TIMEOUT_S,
        )
        return answer.status_code, answer.json()["messages"], time.monotonic()

    polls = [pool.submit(poll) for _ in range(2)]
    metrics = broker.base.replace("/api/v1", "/metrics")
    wait_until(
        lambda: "hookstation_receivers_waiting 2.0" in requests.get(metrics, timeout=60).text,
        TIMEOUT_S,
        "they do not wait",
        broker.log,
    )
    return polls


@contextmanager
def second_host(broker: Broker, folder: Path) -> Iterator[Broker]:
    """Run another broker on the same database."""
    other = Broker(folder, broker.environment["DATABASE_URL"], **SETTINGS)
    other.http.headers.update(broker.http.headers)
    try:
        other.start()
        yield other
    finally:
        other.end()


@pytest.mark.seed("S4-18", "S4-37")
def test_two_brokers_on_one_database_share_the_work_until_one_is_killed(
    broker: Broker, receiver: Receiver, channel: str, tmp_path: Path
) -> None:
    for number in range(8):
        values = {"url": receiver.url("/ok"), "timeout_ms": REQUEST_MS}
        retry_until_done(broker, "PUT", f"/channels/{channel}/consumers/more-{number}", json=values)
    with (
        second_host(broker, tmp_path) as other,
        flowing(channel, broker, other, pause_s=0.2) as traffic,
    ):
        assert other.process is not None
        traffic.wait_for_more(20)
        wait_until(lambda: len(_workers(broker)) == 2, TIMEOUT_S, "one of them does nothing")
        os.kill(other.process.pid, signal.SIGKILL)
        other.process.wait()
        other.port = broker.port  # as a load balancer would do
        other.base = broker.base
        traffic.wait_for_more(20)
    check(broker, receiver, traffic.acknowledged)
    assert set(heard_ids(receiver, "/ok")) >= traffic.acknowledged


def _workers(broker: Broker) -> set[str]:
    """The pumps that made the last 40 attempts."""
    rows = Counts(broker).read("SELECT worker FROM delivery_attempt ORDER BY id DESC LIMIT 40")
    return {str(worker) for (worker,) in rows}


@pytest.mark.seed("S4-06")
def test_each_second_is_one_message_while_maintenance_processes_are_killed(
    broker: Broker, receiver: Receiver, tmp_path: Path
) -> None:
    with second_host(broker, tmp_path):
        keys = played(broker, receiver)
    instants = [int(key.rpartition(":")[2]) for key in keys]
    assert instants == list(range(instants[0], instants[0] + 1000 * SECONDS, 1000))


def played(broker: Broker, receiver: Receiver) -> list[str]:
    """Run the schedule to its end under kills; return the messages' idempotency keys in order."""
    retry_until_done(broker, "PUT", "/channels/ticks", json={})
    retry_until_done(
        broker, "PUT", "/channels/ticks/consumers/one", json={"url": receiver.url("/ok")}
    )
    wanted = {"cron": "*/1 * * * * *", "limit": SECONDS, "body": "tick"}
    retry_until_done(broker, "PUT", SCHEDULE, json=wanted)
    counts, chance = Counts(broker), random.Random(7)
    end = time.monotonic() + TIMEOUT_S
    while retry_until_done(broker, "GET", SCHEDULE)[0]["state"] == "active":
        assert time.monotonic() < end, broker.log()[-3000:]
        time.sleep(chance.uniform(0.5, 2.0))
        living = [int(pid) for (pid,) in counts.read(MAINTENANCE_PROCESSES) if lives(int(pid))]
        if living:
            os.kill(chance.choice(living), signal.SIGKILL)
    wait_until(lambda: not counts.open_count(), TIMEOUT_S, "rows stay open", broker.log)
    heard = Counter(heard_ids(receiver, "/ok"))
    rows = counts.read(KEYS)
    assert len(heard) == len(rows) == SECONDS
    return [str(key) for key, _ in rows]
