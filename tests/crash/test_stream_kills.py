"""Kill either side of a gRPC stream while messages flow: no message is lost."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker

from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S, retry_until_done
from tests.crash.traffic import flowing
from tests.support import broker as broker_module
from tests.support import streams
from tests.support.broker import ROOT, Broker, descendants, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.mysql]

WORKER = """
import sys, time
from hookstation_client import Hookstation, Worker

def handle(delivery):
    time.sleep(0.005)
    with open(sys.argv[2], "a") as handled:
        handled.write(f"{delivery.id}\\n")

Worker(
    Hookstation(timeout=60), sys.argv[1], "all", handle, concurrency=8, lease=3, wait=1,
    worker_id=sys.argv[3], resume=sys.argv[4] == "resume",
).run()
"""


@pytest.fixture(scope="module")
def started(
    tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker
) -> Iterator[Broker]:
    """The broker that all tests of the file share."""
    folder = tmp_path_factory.mktemp("streams")
    settings = {"HOOKSTATION_WEB_WORKERS": "1", **streams.setting()}
    with django_db_blocker.unblock(), broker_module.running(folder, **settings) as broker:
        streams.wait_for_grpc(broker)
        yield broker


@pytest.fixture
def channel(started: Broker, request: pytest.FixtureRequest) -> str:
    """A channel with a pull consumer."""
    name = request.node.name.replace("_", "-")[:60]
    retry_until_done(started, "PUT", f"/channels/{name}", json={})
    retry_until_done(started, "PUT", f"/channels/{name}/consumers/all", json={"mode": "pull"})
    return str(name)


@pytest.fixture(scope="module")
def program() -> list[str]:
    """The command of the worker, without its arguments."""
    return [sys.executable, "-c", WORKER]


@contextmanager
def worker(
    program: list[str], broker: Broker, channel: str, handled: Path, name: str, resume: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker that receives over a stream; it is told to end at the end of the block."""
    process = subprocess.Popen(
        [*program, channel, str(handled), name, resume],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "clients/python/src"),
            "HOOKSTATION_URL": f"http://127.0.0.1:{broker.port}",
            "HOOKSTATION_GRPC_URL": f"grpc://{broker.environment['HOOKSTATION_GRPC_ADDRESS']}",
            "HOOKSTATION_KEY": streams.key_of(broker),
        },
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(TIMEOUT_S)


def check(broker: Broker, channel: str, handled: Path, acknowledged: set[str]) -> int:
    """Check that every message was handled and settled; return how many were handled again."""
    counts = Counts(broker)
    wait_until(lambda: not counts.open_count(), TIMEOUT_S, "rows stay open", broker.log)
    counts.check()
    got = Counter(handled.read_text().split())
    assert acknowledged <= got.keys()
    return sum(number > 1 for number in got.values())


def server(broker: Broker) -> int | None:
    """The process id of the gRPC server, if it runs."""
    assert broker.process is not None
    for pid in descendants(broker.process.pid):
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"\0grpc\0" in title and b"python" in title.partition(b"\0")[0]:
            return pid
    return None


@pytest.mark.smoke
def test_kill_9_of_the_server_loses_nothing(
    started: Broker, program: list[str], channel: str, tmp_path: Path
) -> None:
    handled = tmp_path / "handled"
    with worker(program, started, channel, handled, "one"), flowing(channel, started) as traffic:
        traffic.wait_for_more(30)
        for _ in range(3):
            wait_until(lambda: server(started) is not None, TIMEOUT_S, "no gRPC server")
            pid = server(started)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            traffic.wait_for_more(30)
        traffic.stopped.set()
        wait_until(lambda: not Counts(started).open_count(), TIMEOUT_S, "rows stay open")
    check(started, channel, handled, traffic.acknowledged)
    streams.wait_for_grpc(started)


def test_kill_9_of_the_worker_loses_nothing(
    started: Broker, program: list[str], channel: str, tmp_path: Path
) -> None:
    handled = tmp_path / "handled"
    with flowing(channel, started) as traffic:
        for number in range(3):
            with worker(
                program, started, channel, handled, "one", "resume" if number else ""
            ) as process:
                traffic.wait_for_more(30)
                wait_until(
                    lambda: handled.exists() and handled.stat().st_size > 500,
                    TIMEOUT_S,
                    "nothing is handled",
                )
                process.kill()
        with worker(program, started, channel, handled, "two"):
            traffic.wait_for_more(30)
            traffic.stopped.set()
            wait_until(lambda: not Counts(started).open_count(), TIMEOUT_S, "rows stay open")
    check(started, channel, handled, traffic.acknowledged)


def test_a_stop_and_a_start_of_the_broker_lose_nothing(
    started: Broker, program: list[str], channel: str, tmp_path: Path
) -> None:
    handled = tmp_path / "handled"
    with worker(program, started, channel, handled, "one"), flowing(channel, started) as traffic:
        traffic.wait_for_more(50)
        began = time.monotonic()
        assert started.stop() == 0
        assert time.monotonic() - began < 30
        started.start()
        traffic.wait_for_more(50)
        traffic.stopped.set()
        wait_until(lambda: not Counts(started).open_count(), TIMEOUT_S, "rows stay open")
    check(started, channel, handled, traffic.acknowledged)
