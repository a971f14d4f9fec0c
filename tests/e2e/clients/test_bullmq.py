"""BullMQ and Bull on a real broker: tests of the packages, and examples before and after."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from hookstation_client import Hookstation

from tests.support import node, ports
from tests.support.broker import wait_until
from tests.support.examples import PATIENCE_S, Program

pytestmark = pytest.mark.e2e

FILES = sorted(path.name for path in (node.BULLMQ / "test/broker").glob("*.test.mjs"))


@pytest.mark.parametrize("name", FILES)
def test_backend_does_with_a_broker_what_its_tests_say(hooks: Hookstation, name: str) -> None:
    environment = {"HOOKSTATION_URL": hooks.url, "HOOKSTATION_KEY": hooks.key}

    node.run_tests(node.built(node.build_bullmq), "broker", name.partition(".")[0], **environment)


def test_programs_for_bull_run_on_a_broker(hooks: Hookstation) -> None:
    environment = {"HOOKSTATION_URL": hooks.url, "HOOKSTATION_KEY": hooks.key}

    node.run_tests(node.built(node.build_bull), "broker", **environment)


@contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """Run Redis inside the block, on the port that is returned; skip the test without it."""
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("there is no redis-server (Debian: redis-server)")
    port = ports.claim()
    with (folder / "redis.log").open("wb") as log:
        command = [server, "--port", str(port), "--save", "", "--dir", str(folder)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with redis.Redis(port=port) as client:
            wait_until(lambda: _answers(client), PATIENCE_S, "Redis does not answer")
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.fixture(params=["before", "after"])
def environment(
    request: pytest.FixtureRequest, hooks: Hookstation, tmp_path: Path
) -> Iterator[Mapping[str, str]]:
    """The version of the example, and the variables of its task queue."""
    version = {"VERSION": request.param}
    if request.param == "after":
        yield version | {"HOOKSTATION_URL": hooks.url, "HOOKSTATION_KEY": hooks.key}
        return
    with redis_server(tmp_path) as port:
        yield version | {"REDIS_PORT": str(port)}


@pytest.mark.parametrize("example", ["bull", "bullmq"])
def test_the_letters_of_the_example_are_sent_once(
    example: str, environment: Mapping[str, str], tmp_path: Path
) -> None:
    letters = tmp_path / "letters.txt"
    shared = {**environment, "SHOP_QUEUE": f"ShopLetters-{example}", "SHOP_LETTERS": str(letters)}
    # BullMQ begins to read events a moment after waitUntilReady: it misses what ends before that.
    shared["SHOP_PAUSE_MS"] = "1000"
    script = f"{environment['VERSION']}.mjs"
    worker = Program(example, tmp_path / "worker.log", shared, script)
    shop = Program(example, tmp_path / "shop.log", shared, script)
    worker.start("work")
    try:
        printed = shop.run("add", "1", "4").splitlines()
        again = shop.run("add", "4").splitlines()
        refused = shop.run("add", "9").splitlines()

        status = worker.stop()
    finally:
        worker.kill()

    assert [json.loads(line)["number"] for line in printed[4:]] == [1, 2, 3, 4]
    assert json.loads(again[1]) == {"number": 4, "sentTo": "customer 4"}
    assert json.loads(refused[1]) == "no such address"
    assert sorted(letters.read_text().split()) == ["1", "2", "3", "4"]
    assert status == os.EX_OK, worker.log()
    assert "letter 3: no ink" in worker.printed()
