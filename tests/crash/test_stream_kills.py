"""Kill either side of a gRPC stream of each client while messages flow: no message is lost."""

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

from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S, retry_until_done
from tests.crash.traffic import flowing
from tests.support import broker as broker_module
from tests.support import node, streams, toolchains
from tests.support.broker import ROOT, Broker, wait_until

pytestmark = pytest.mark.e2e
PYTHON = """
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
NODE = """
import { appendFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const [module, channel, handled, workerId, resume] = process.argv.slice(1);
const { Hookstation, Worker } = await import(pathToFileURL(module));

async function handle({ id }) {
  await sleep(5);
  appendFileSync(handled, `${id}\\n`);
}

const options = { concurrency: 8, lease: 3, wait: 1, workerId, resume: resume === "resume" };
await new Worker(new Hookstation({ timeout: 60 }), channel, "all", handle, options).run();
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that all tests of the file share."""
    folder = tmp_path_factory.mktemp("streams")
    settings = {"HOOKSTATION_WEB_WORKERS": "1", **streams.setting()}
    with broker_module.running(folder, **settings) as broker:
        streams.wait_for_grpc(broker)
        yield broker


@pytest.fixture
def channel(started: Broker, request: pytest.FixtureRequest) -> str:
    """A channel with a pull consumer."""
    name = request.node.name.replace("_", "-").replace("[", ".").rstrip("]")
    retry_until_done(started, "PUT", f"/channels/{name}", json={})
    retry_until_done(started, "PUT", f"/channels/{name}/consumers/all", json={"mode": "pull"})
    return str(name)


def _python() -> list[str]:
    return [sys.executable, "-c", PYTHON]


def _node() -> list[str]:
    client = node.require() / "dist/esm/index.js"
    return ["node", "--input-type=module", "-e", NODE, str(client)]


def _go() -> list[str]:
    options = '-channel "$1" -handled "$2" -name "$3" ${4:+-resume} -pause 5ms -lease 3s'
    return ["sh", "-c", f'exec "$0" {options}', str(toolchains.build_go_grpc() / "worker")]


def _java() -> list[str]:
    return [*toolchains.JVM, "-cp", toolchains.java_path(), "dev.hookstation.client.CrashWorker"]


PYTHON_PROGRAM, *OTHERS = (
    pytest.param(it, id=it.__name__[1:]) for it in (_python, _node, _go, _java)
)


@pytest.fixture(scope="module", params=[PYTHON_PROGRAM, *OTHERS])
def program(request: pytest.FixtureRequest) -> list[str]:
    """The command of a client's worker, without its arguments."""
    try:
        command: list[str] = request.param()
    except toolchains.Missing as missing:
        pytest.skip(str(missing))
    return command


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
            "HOOKSTATION_KEY": broker.key,
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


# Only these kills meet transactions of the database.
@pytest.mark.parametrize(
    "program",
    [pytest.param(_python, marks=pytest.mark.mysql, id="python"), *OTHERS],
    indirect=True,
)
def test_kill_9_of_the_server_loses_nothing(
    started: Broker, program: list[str], channel: str, tmp_path: Path
) -> None:
    handled = tmp_path / "handled"
    with worker(program, started, channel, handled, "one"), flowing(channel, started) as traffic:
        traffic.wait_for_more(20)
        for _ in range(2):
            wait_until(lambda: streams.server_of(started) is not None, TIMEOUT_S, "no gRPC server")
            pid = streams.server_of(started)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            traffic.wait_for_more(20)
        traffic.stopped.set()
        wait_until(lambda: not Counts(started).open_count(), TIMEOUT_S, "rows stay open")
    check(started, channel, handled, traffic.acknowledged)
    streams.wait_for_grpc(started)


# What holds the messages of a dead worker is the broker, whatever the worker was written in.
@pytest.mark.parametrize("program", [PYTHON_PROGRAM], indirect=True)
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
        traffic.wait_for_more(20)
        began = time.monotonic()
        assert started.stop() == 0
        assert time.monotonic() - began < 30
        started.start()
        traffic.wait_for_more(20)
        traffic.stopped.set()
        wait_until(lambda: not Counts(started).open_count(), TIMEOUT_S, "rows stay open")
    check(started, channel, handled, traffic.acknowledged)
