"""Processes killed or stopped while messages flow: no message is lost, no failure is charged."""

import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S
from tests.crash.hosts import another_host
from tests.crash.place import Place
from tests.crash.traffic import Traffic
from tests.support.broker import (
    Broker,
    descendants,
    heard_ids,
    lives,
    receivers_waiting,
    title,
    wait_until,
)

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
SECONDS = 12
KEYS = (
    "SELECT idempotency_key FROM channels_app_message"
    " WHERE idempotency_key LIKE 'schedule:tick:%' ORDER BY id"
)


@pytest.fixture
def busy(place: Place) -> Place:
    """A channel with a consumer that takes 200 ms for each request.

    Its broker is started again if an earlier test stopped it.
    """
    broker = place.broker
    if broker.process is None or broker.process.poll() is not None:
        broker.start()
    place.register("/slow?ms=200", timeout_ms=REQUEST_MS, max_in_flight=16)
    return place


def check(busy: Place, traffic: Traffic) -> int:
    """Check that all messages arrived and all counters are right; return how many repeated."""
    busy.settle()
    heard = Counter(heard_ids(busy.receiver, "/slow"))
    assert traffic.acknowledged <= heard.keys()
    return sum(number > 1 for number in heard.values())


def victim(broker: Broker, kind: str) -> int:
    """The process id of a living process of this kind."""
    if kind in {"pump", "maintenance"}:
        living = Counts(broker).living
        wait_until(lambda: bool(living(kind)), TIMEOUT_S, f"no {kind} has a slot")
        return living(kind)[0]
    assert broker.process is not None
    if kind == "supervisor":
        return broker.process.pid
    word = {"web": "granian", "worker": "qcluster"}[kind]
    found = [pid for pid in descendants(broker.process.pid) if word in title(pid)]
    return next(pid for pid in found if set(descendants(pid)) & set(found))


@pytest.mark.parametrize("kind", ["web", "pump", "maintenance", "worker", "supervisor"])
def test_kill_9_under_load_loses_nothing(busy: Place, kind: str) -> None:
    broker = busy.broker
    with busy.traffic() as traffic:
        traffic.flows()
        dead = [victim(broker, kind)]
        if kind == "supervisor":
            dead += descendants(dead[0])
        os.kill(dead[0], signal.SIGKILL)
        busy.wait_until(lambda: not any(map(lives, dead)), "somebody lives on")
        if kind == "supervisor":
            broker.stop()  # only collects its exit status
            broker.start()  # which takes over where the killed one left
        traffic.flows()
    twice = check(busy, traffic)
    if kind in {"web", "maintenance"}:
        assert twice == 0


def test_a_stop_under_load_answers_long_polls_and_releases_everything_in_time(busy: Place) -> None:
    broker, counts = busy.broker, busy.counts
    with busy.traffic() as traffic:
        # The stop must not wait for a maintenance process that was killed.
        os.kill(victim(broker, "maintenance"), signal.SIGKILL)
        traffic.flows()
        with ThreadPoolExecutor(2) as pool:
            polls = long_polls(Place(broker, busy.point, busy.receiver), pool)
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
        traffic.flows()
    assert check(busy, traffic) == 0


def long_polls(idle: Place, pool: ThreadPoolExecutor) -> list[Future[tuple[int, list[Any], float]]]:
    """Begin two receive calls without messages; return them when both wait.

    Each returns the status, the messages, and when the response came (monotonic).
    """
    idle.register_puller()

    def poll() -> tuple[int, list[Any], float]:
        answer = requests.post(
            f"{idle.broker.base}{idle.puller}/receive",
            json={"wait_s": 20},
            headers=idle.broker.http.headers,
            timeout=TIMEOUT_S,
        )
        return answer.status_code, answer.json()["messages"], time.monotonic()

    polls = [pool.submit(poll) for _ in range(2)]
    idle.wait_until(lambda: receivers_waiting(idle.broker) == 2, "they do not wait")
    return polls


@pytest.mark.seed("S4-18", "S4-37")
def test_two_brokers_on_one_database_share_the_work_until_one_is_killed(
    busy: Place, tmp_path: Path
) -> None:
    broker = busy.broker
    for number in range(8):
        values = {"url": busy.receiver.url("/ok"), "timeout_ms": REQUEST_MS}
        busy.call("PUT", f"{busy.path}/consumers/more-{number}", json=values)
    with (
        another_host(broker, tmp_path / "other", **SETTINGS) as other,
        busy.traffic(other, pause_s=0.2) as traffic,
    ):
        assert other.process is not None
        traffic.flows(20)
        busy.wait_until(lambda: len(_workers(busy)) == 2, "one of them does nothing")
        os.kill(other.process.pid, signal.SIGKILL)
        other.process.wait()
        other.port = broker.port  # as a load balancer would do
        other.base = broker.base
        traffic.flows(20)
    check(busy, traffic)
    assert set(heard_ids(busy.receiver, "/ok")) >= traffic.acknowledged


def _workers(busy: Place) -> set[str]:
    """The pumps that made the last 40 attempts."""
    rows = busy.counts.read("SELECT worker FROM delivery_attempt ORDER BY id DESC LIMIT 40")
    return {str(worker) for (worker,) in rows}


@pytest.mark.seed("S4-06")
def test_each_second_is_one_message_while_maintenance_processes_are_killed(
    busy: Place, tmp_path: Path
) -> None:
    with another_host(busy.broker, tmp_path / "other", **SETTINGS):
        keys = played(busy)
    instants = [int(key.rpartition(":")[2]) for key in keys]
    assert instants == list(range(instants[0], instants[0] + 1000 * SECONDS, 1000))


def played(place: Place) -> list[str]:
    """Run a schedule to its end under kills; return the messages' idempotency keys in order."""
    path = f"{place.path}/schedules/tick"
    place.call("PUT", path, json={"cron": "*/1 * * * * *", "limit": SECONDS, "body": "tick"})
    chance = random.Random(7)
    end = time.monotonic() + TIMEOUT_S
    while place.call("GET", path)["state"] == "active":
        assert time.monotonic() < end, place.broker.log()[-3000:]
        time.sleep(chance.uniform(0.5, 2.0))
        if living := place.counts.living("maintenance"):
            os.kill(chance.choice(living), signal.SIGKILL)
    place.settle()
    rows = place.counts.read(KEYS)
    assert len(set(place.arrivals())) == len(rows) == SECONDS
    return [str(key) for (key,) in rows]
