"""The machine of a running broker fails: full disk, no name resolution, lost wake-ups."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
import requests
from django.db import connection

from tests.crash.faults.conftest import PATH, installed
from tests.crash.faults.disk import Disk
from tests.crash.faults.processes import check_same_processes, processes, stays_calm, usual_cpu
from tests.crash.traffic import RECOVERY_S, Traffic
from tests.support.broker import ROOT, Broker, database_with_key, wait_until
from tests.support.receiver import Receiver, Reply

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(connection.vendor == "mysql", reason="runs in the SQLite part"),
]
RESERVE = 8 * 1024**2
"""More than the write-ahead log grows by, so that work in progress has room. Bytes."""


class Installation(NamedTuple):
    """A broker on one small disk, its consumer, and the file of names that resolve."""

    broker: Broker
    consumer: Receiver
    disk: Disk
    names: Path


@pytest.fixture(scope="module")
def installation(
    tmp_path_factory: pytest.TempPathFactory, consumer: Receiver
) -> Iterator[Installation]:
    disk = Disk(tmp_path_factory.mktemp("disk"))
    names = tmp_path_factory.mktemp("names") / "names"
    names.write_text("")
    settings = {
        "PYTHONPATH": str(ROOT / "tests/crash/faults/resolver"),
        "NAMES_THAT_LEAD_HERE": str(names),
        "HOOKSTATION_BREAKER_FAILURES": "1000",
        "HOOKSTATION_DISK_RESERVE_BYTES": str(RESERVE),
    }
    try:
        with database_with_key(disk.folder) as (url, key):
            for broker in installed(disk.folder, url, consumer, key=key, **settings):
                yield Installation(broker, consumer, disk, names)
    finally:
        disk.close()


@pytest.mark.seed("S4-19")
def test_a_full_disk_stops_only_acknowledgements(
    installation: Installation,
) -> None:
    broker, consumer, disk, _ = installation
    before = processes(broker)
    with Traffic(broker, name="disk") as traffic:
        traffic.flows()
        with disk.full(broker):
            # Some messages still fit into the room that the write-ahead log already has.
            traffic.is_refused()
            stays_calm(broker)
        traffic.flows()
    traffic.all_arrived(consumer, PATH)
    assert len(traffic.acknowledged) == traffic.keys
    check_same_processes(broker, before)


@pytest.mark.trap("a full disk")
def test_low_disk_space_stops_publishing_but_not_replays(
    installation: Installation,
) -> None:
    broker, consumer, disk, _ = installation
    if not disk.is_small:
        pytest.skip("needs the right to mount a small file system")
    consumer.script("/reserve", [Reply(status=410), Reply(status=200)])
    target = {"url": consumer.url("/reserve"), "event_types": ["reserve"]}
    broker.call("PUT", "/channels/orders/consumers/reserve", 201, json=target)
    headers = {"Hookstation-Event-Type": "reserve"}
    broker.call("POST", "/channels/orders/messages", 202, data=b"{}", headers=headers)
    dead = "/channels/orders/consumers/reserve/dead-letters"
    wait_until(lambda: bool(broker.call("GET", dead, 200)["items"]), RECOVERY_S, "none is dead")
    ready = broker.base.replace("/api/v1", "/readyz?exclude=pumps&exclude=oldest_due")
    with Traffic(broker, name="reserve") as traffic:
        traffic.flows()
        with disk.nearly_full(RESERVE - 1024**2):
            traffic.is_refused()
            answer = requests.get(ready, timeout=RECOVERY_S)
            assert answer.status_code == 503
            checks = answer.json()["checks"]
            assert {name for name, it in checks.items() if not it["ok"]} == {"disk"}
            broker.call("POST", "/channels/orders/consumers/reserve/resume", 200)
            (row,) = broker.call("GET", dead, 200)["items"]
            broker.call("POST", f"/deliveries/{row['id']}/replay", 202)
            wait_until(
                lambda: len(consumer.requests("/reserve")) == 2, RECOVERY_S, "it does not arrive"
            )
        traffic.flows()
    assert {it.status for it in traffic.answers} >= {202, 507}
    assert requests.get(ready, timeout=RECOVERY_S).status_code == 200
    broker.call("DELETE", "/channels/orders/consumers/reserve", 204)


def test_an_unresolvable_host_name_delays_only_its_consumer(
    installation: Installation,
) -> None:
    broker, consumer, _, names = installation
    target = {
        "url": consumer.url("/named", host="shop.test"),
        "retry": [2.0],
        "max_attempts": 100,
    }
    usual = usual_cpu(broker, "known")
    broker.call("PUT", "/channels/orders/consumers/named", 201, json=target)
    with Traffic(broker, name="names") as traffic:
        traffic.flows()
        stays_calm(broker, usual)
    traffic.all_arrived(consumer, PATH)
    assert not consumer.requests("/named")
    waiting = "/channels/orders/consumers/named/deliveries?state=Retry-Delivery"
    assert {row["outcome"] for row in broker.call("GET", waiting, 200)["items"]} == {"dns_error"}
    names.write_text("shop.test")
    traffic.all_arrived(consumer, "/named")
    broker.call("DELETE", "/channels/orders/consumers/named", 204)


def test_without_wakeups_and_change_markers_polling_finds_everything(
    installation: Installation,
) -> None:
    broker, consumer, disk, _ = installation
    usual = usual_cpu(broker, "woken")
    file = disk.folder / "broker.sqlite3"
    with closing(sqlite3.connect(file, timeout=RECOVERY_S, isolation_level=None)) as database:
        database.execute("UPDATE delivery_pumpslot SET wake_address = '127.0.0.1 9'")
    change_marker = disk.folder / "configuration-changed"
    change_marker.unlink()
    change_marker.mkdir()  # nobody can write to it, not even root
    time.sleep(1.5)  # web processes cache the old address for a second
    target = {"url": consumer.url("/unannounced")}
    broker.call("PUT", "/channels/orders/consumers/unannounced", 201, json=target)
    with Traffic(broker, name="unwoken") as traffic:
        traffic.flows()
        stays_calm(broker, usual)
    for path in (PATH, "/unannounced"):
        traffic.all_arrived(consumer, path)
    assert broker.log().count("web started") == broker.log().count("worker started") == 1
