"""MariaDB fails and recovers under traffic, many times, for one running broker."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import requests

from tests.crash.faults.conftest import PATH, installed
from tests.crash.faults.mariadb import Server
from tests.crash.faults.processes import check_same_processes, open_files, processes, stays_calm
from tests.crash.traffic import RECOVERY_S, Traffic
from tests.support.broker import Broker, wait_until
from tests.support.outage import Proxy
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]
WEB_PROCESSES, WEB_THREADS = 2, 8
CONNECTIONS = WEB_PROCESSES * WEB_THREADS + 10
"""One per web thread, plus those of pumps, sweeps and django-q2."""


class Installation(NamedTuple):
    """A broker, its consumer and its database server."""

    broker: Broker
    consumer: Receiver
    server: Server


@pytest.fixture(scope="module")
def installation(
    tmp_path_factory: pytest.TempPathFactory, consumer: Receiver
) -> Iterator[Installation]:
    server = Server(tmp_path_factory.mktemp("mariadb"))
    try:
        for broker in installed(
            tmp_path_factory.mktemp("broker"),
            server.database("broker"),
            consumer,
            HOOKSTATION_WEB_WORKERS=str(WEB_PROCESSES),
            HOOKSTATION_WEB_THREADS=str(WEB_THREADS - 1),
            HOOKSTATION_LONG_POLLS="1",
        ):
            yield Installation(broker, consumer, server)
    finally:
        server.end(signal.SIGKILL)


def _is_ready_to_accept(broker: Broker) -> bool:
    """Whether a load balancer in front of the publishing hosts may use the broker."""
    url = broker.base.replace("/api/v1", "/readyz?exclude=pumps&exclude=oldest_due")
    return requests.get(url, timeout=RECOVERY_S).ok


@pytest.mark.seed("S4-19", "S4-29")
@pytest.mark.trap("ready, but cannot store")
@pytest.mark.trap("no reconnection")
@pytest.mark.parametrize("fault", ["stopped", "killed", "read_only", "crowded", "frozen"])
def test_a_database_outage_acknowledges_nothing_unstored_and_recovers(
    installation: Installation, fault: str
) -> None:
    broker, consumer, server = installation
    before = processes(broker)
    with Traffic(broker, name=fault) as traffic:
        traffic.flows()
        with getattr(server, fault)():
            began = time.monotonic()
            if fault != "frozen":  # then requests wait
                traffic.is_refused()
                wait_until(lambda: not _is_ready_to_accept(broker), RECOVERY_S, "it is ready")
            stays_calm(broker)
            ended = time.monotonic()
        traffic.flows()
    assert traffic.acknowledged_within(began, ended) == 0
    traffic.all_arrived(consumer, PATH)
    check_same_processes(broker, before)


@pytest.mark.trap("no reconnection")
def test_outages_leak_no_connections_and_no_files(installation: Installation) -> None:
    broker, consumer, server = installation

    def outage(number: int) -> None:
        with Traffic(broker, name=f"again-{number}") as traffic:
            traffic.flows()
            with server.killed():
                traffic.is_refused()
            traffic.flows()
        traffic.all_arrived(consumer, PATH)

    outage(0)
    before = open_files(broker)
    outage(1)
    after = open_files(broker)
    assert after.keys() == before.keys()
    # Another thread may answer now, on its own connection; two are for the producers' connections.
    assert all(after[pid] <= before[pid] + WEB_THREADS + 2 for pid in after), (before, after)
    wait_until(
        lambda: server.connections() <= CONNECTIONS, RECOVERY_S, "connections are left", broker.log
    )
    assert broker.log().count("web started") == broker.log().count("worker started") == 1
    assert " hangs; killing" not in broker.log()


def test_a_slow_interrupted_connection_loses_and_duplicates_nothing(
    tmp_path: Path, installation: Installation
) -> None:
    _, consumer, server = installation
    # 6 s instead of 60 s: the time after which the broker gives up on a host that vanished.
    url = f"{server.database('broker_far')}?read_timeout=6"
    with Proxy(url) as way:
        for broker in installed(tmp_path, way.url, consumer, path="/far"):
            way.delay_s = 0.01
            with Traffic(broker, name="far") as traffic:
                for _ in range(5):
                    traffic.flows()
                    way.cut()
                traffic.flows()
                way.vanish()
                traffic.flows()
            traffic.all_arrived(consumer, "/far")
            ((stored,),) = server.run("SELECT COUNT(*) FROM broker_far.channels_app_message")
            assert stored == len(traffic.acknowledged) == traffic.keys
            # The worker that reconnects last may have been taken for dead: it then ends by itself,
            # without a kill.
            assert broker.log().count("web started") == broker.log().count("worker started") == 1
            assert " hangs; killing" not in broker.log()
