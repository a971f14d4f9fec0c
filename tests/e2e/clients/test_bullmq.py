"""The examples for BullMQ and Bull, before and after, on Redis and on a real broker."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hookstation_client import Hookstation

from tests.support import redis_server
from tests.support.examples import Program

pytestmark = pytest.mark.e2e


@pytest.fixture(params=["before", "after"])
def environment(
    request: pytest.FixtureRequest, hooks: Hookstation, tmp_path: Path
) -> Iterator[Mapping[str, str]]:
    """The version of the example, and the variables of its task queue."""
    version = {"VERSION": request.param}
    if request.param == "after":
        yield version | {"HOOKSTATION_URL": hooks.url, "HOOKSTATION_KEY": hooks.key}
        return
    with redis_server.running(tmp_path) as port:
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
