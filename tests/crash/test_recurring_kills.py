"""A schedule that fires each second, while maintenance processes of two hosts are killed."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S, retry_until_done
from tests.support import broker as broker_module
from tests.support.broker import Broker, heard_ids, wait_until
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e, pytest.mark.mysql]
SETTINGS = {"HOOKSTATION_WEB_WORKERS": "1", "HOOKSTATION_LEASE_GRACE_MS": "2000"}
SCHEDULE = "/channels/ticks/schedules/tick"
SECONDS = 12
MAINTENANCE_PROCESSES = "SELECT pid FROM delivery_pumpslot WHERE kind = 'maintenance'"
KEYS = (
    "SELECT idempotency_key, accepted_at FROM channels_app_message"
    " WHERE idempotency_key LIKE 'schedule:tick:%' ORDER BY id"
)


@pytest.mark.seed("S4-06")
def test_each_second_is_one_message(tmp_path: Path, receiver: Receiver) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with broker_module.running(folders[0], **SETTINGS) as broker:
        other = Broker(folders[1], broker.environment["DATABASE_URL"], **SETTINGS)
        try:
            other.start()
            keys = played(broker, receiver)
        finally:
            other.http.close()
            if other.process is not None and other.process.poll() is None:
                other.stop()
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
        living = [int(pid) for (pid,) in counts.read(MAINTENANCE_PROCESSES) if _lives(int(pid))]
        if living:
            os.kill(chance.choice(living), signal.SIGKILL)
    wait_until(lambda: not counts.open_count(), TIMEOUT_S, "rows stay open", broker.log)
    heard = Counter(heard_ids(receiver, "/ok"))
    rows = counts.read(KEYS)
    assert len(heard) == len(rows) == SECONDS
    return [str(key) for key, _ in rows]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
