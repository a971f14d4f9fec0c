"""Kill either side of a gRPC stream of each client while messages flow: no message is lost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S, retry_until_done
from tests.crash.traffic import Traffic
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


@dataclass(frozen=True, slots=True)
class Scene:
    """A broker, and a client's worker that receives over a stream while messages flow."""

    broker: Broker
    program: list[str]
    """The command of the worker, without its arguments."""
    channel: str
    handled: Path
    """The file to which the worker writes the id of each delivery."""

    def traffic(self) -> Traffic:
        """Producers of the channel."""
        return Traffic(self.broker, channel=self.channel, may_die=True)

    @contextmanager
    def worker(self, name: str = "one", resume: str = "") -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker; it is told to end at the end of the block."""
        process = subprocess.Popen(
            [*self.program, self.channel, str(self.handled), name, resume],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT / "clients/python/src"),
                "HOOKSTATION_URL": f"http://127.0.0.1:{self.broker.port}",
                "HOOKSTATION_GRPC_URL": "grpc://"
                + self.broker.environment["HOOKSTATION_GRPC_ADDRESS"],
                "HOOKSTATION_KEY": self.broker.key,
            },
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(TIMEOUT_S)

    def finish(self, traffic: Traffic) -> None:
        """Publish no more; every message must be handled and settled."""
        traffic.stop()
        Counts(self.broker).settle()
        assert traffic.acknowledged <= set(self.handled.read_text().split())


@pytest.fixture(params=[PYTHON_PROGRAM, *OTHERS])
def scene(started: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    """A channel with a pull consumer."""
    try:
        program: list[str] = request.param()
    except toolchains.Missing as missing:
        pytest.skip(str(missing))
    name = request.node.name.replace("_", "-").replace("[", ".").rstrip("]")
    retry_until_done(started, "PUT", f"/channels/{name}", json={})
    retry_until_done(started, "PUT", f"/channels/{name}/consumers/all", json={"mode": "pull"})
    return Scene(started, program, name, tmp_path / "handled")


# Only these kills meet transactions of the database.
@pytest.mark.parametrize(
    "scene",
    [pytest.param(_python, marks=pytest.mark.mysql, id="python"), *OTHERS],
    indirect=True,
)
def test_kill_9_of_the_server_loses_nothing(scene: Scene) -> None:
    broker = scene.broker
    with scene.worker(), scene.traffic() as traffic:
        traffic.flows(20)
        for _ in range(2):
            wait_until(lambda: streams.server_of(broker) is not None, TIMEOUT_S, "no gRPC server")
            pid = streams.server_of(broker)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            traffic.flows(20)
        scene.finish(traffic)
    streams.wait_for_grpc(broker)


# What holds the messages of a dead worker is the broker, whatever the worker was written in.
@pytest.mark.parametrize("scene", [PYTHON_PROGRAM], indirect=True)
def test_kill_9_of_the_worker_loses_nothing(scene: Scene) -> None:
    handled = scene.handled
    with scene.traffic() as traffic:
        for number in range(3):
            with scene.worker(resume="resume" if number else "") as process:
                traffic.flows(30)
                wait_until(
                    lambda: handled.exists() and handled.stat().st_size > 500,
                    TIMEOUT_S,
                    "nothing is handled",
                )
                process.kill()
        with scene.worker("two"):
            traffic.flows(30)
            scene.finish(traffic)


def test_a_stop_and_a_start_of_the_broker_lose_nothing(scene: Scene) -> None:
    with scene.worker(), scene.traffic() as traffic:
        traffic.flows(20)
        began = time.monotonic()
        assert scene.broker.stop() == 0
        assert time.monotonic() - began < 30
        scene.broker.start()
        traffic.flows(20)
        scene.finish(traffic)
