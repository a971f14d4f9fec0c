"""Workers of the client for Go over a gRPC stream, against a real broker.

The tests of workers are Go's own (clients/go/grpc). Here either side is killed while messages flow.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker

from tests.crash import test_stream_kills as kills
from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S
from tests.crash.test_stream_kills import check, server
from tests.crash.traffic import flowing
from tests.support import broker as broker_module
from tests.support import streams, toolchains
from tests.support.broker import Broker, wait_until
from tests.support.toolchains import GO_GRPC, GO_GRPC_ENVIRONMENT, Missing

pytestmark = pytest.mark.e2e

channel = kills.channel

SETTINGS = {
    "HOOKSTATION_WEB_WORKERS": "1",
    # Larger than a body may be in a stream.
    "HOOKSTATION_MAX_BODY_BYTES": "5000000",
}


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder with the worker."""
    try:
        return toolchains.build_go_grpc()
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def started(
    tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker, built: Path
) -> Iterator[Broker]:
    """The broker that all tests of the file share."""
    folder = tmp_path_factory.mktemp("go")
    settings = {**SETTINGS, **streams.setting()}
    with django_db_blocker.unblock(), broker_module.running(folder, **settings) as broker:
        streams.wait_for_grpc(broker)
        yield broker


def environment(broker: Broker) -> dict[str, str]:
    """The variables with addresses and key."""
    return {
        "HOOKSTATION_URL": f"http://127.0.0.1:{broker.port}",
        "HOOKSTATION_GRPC_URL": f"grpc://{broker.environment['HOOKSTATION_GRPC_ADDRESS']}",
        "HOOKSTATION_KEY": streams.key_of(broker),
    }


def test_workers_over_a_stream(started: Broker) -> None:
    said = toolchains.run(
        ["go", "test", "-count=1", "-v", "-timeout", "500s", "-run", "TestWorker$|Streaming", "."],
        GO_GRPC,
        {**GO_GRPC_ENVIRONMENT, **environment(started)},
    )

    passed = re.findall(r"^ *--- PASS: (\S+)", said, re.MULTILINE)
    assert "--- SKIP" not in said
    assert len(passed) >= 15, said


@contextmanager
def worker(
    built: Path, broker: Broker, channel: str, handled: Path, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker; it is told to end at the end of the block."""
    command = [
        *(str(built / "worker"), "-channel", channel, "-handled", str(handled)),
        *("-pause", "5ms", "-lease", "3s", *options),
    ]
    process = subprocess.Popen(command, env={**os.environ, **environment(broker)})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(TIMEOUT_S)


def test_kill_9_of_the_server_loses_nothing(
    built: Path, started: Broker, channel: str, tmp_path: Path
) -> None:
    handled = tmp_path / "handled"
    with worker(built, started, channel, handled), flowing(channel, started) as traffic:
        traffic.wait_for_more(30)
        for _ in range(2):
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
    built: Path, started: Broker, channel: str, tmp_path: Path
) -> None:
    handled = tmp_path / "handled"
    one = ("-name", "one")
    with flowing(channel, started) as traffic:
        for number in range(2):
            options = (*one, "-resume") if number else one
            with worker(built, started, channel, handled, *options) as process:
                traffic.wait_for_more(30)
                wait_until(
                    lambda: handled.exists() and handled.stat().st_size > 500,
                    TIMEOUT_S,
                    "nothing is handled",
                )
                process.kill()
        with worker(built, started, channel, handled, "-name", "two"):
            traffic.wait_for_more(30)
            traffic.stopped.set()
            wait_until(lambda: not Counts(started).open_count(), TIMEOUT_S, "rows stay open")
    check(started, channel, handled, traffic.acknowledged)
