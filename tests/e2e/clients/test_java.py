"""The client for Java against a real broker: its own tests that need one."""

import os
import signal
import subprocess
from typing import Any

import pytest
from hookstation_client import Hookstation

from tests.support import toolchains
from tests.support.broker import Broker
from tests.support.toolchains import JAVA

pytestmark = pytest.mark.e2e

TESTS = "dev.hookstation.client.BrokerTests"


@pytest.fixture(scope="module")
def java() -> list[str]:
    """The command that runs the client's tests."""
    toolchains.need_or_skip("java", "javac")
    return [*toolchains.JVM, "-cp", str(toolchains.build_java() / "classes"), TESTS]


@pytest.fixture
def environment(broker: Broker, key: str) -> dict[str, str]:
    """Nothing listens at the first address: every call goes on with the second one."""
    url = f"http://127.0.0.1:1,http://127.0.0.1:{broker.port}"
    return {"HOOKSTATION_URL": url, "HOOKSTATION_KEY": key}


def test_workers_settle_by_the_results_of_their_handlers(
    java: list[str], environment: dict[str, str]
) -> None:
    said = toolchains.run(java, JAVA, environment)

    assert "FAIL" not in said
    assert said.count("PASS") >= 10


def test_sigterm_ends_a_worker_when_its_handlers_have_ended(
    java: list[str], environment: dict[str, str], hooks: Hookstation, channel: str
) -> None:
    hooks.register(channel, "packing")
    sent = hooks.publish(channel, b"x")
    process: Any = subprocess.Popen(
        [*java, channel],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=120)

    assert first == f"began {sent.id}\n", errors
    assert rest.splitlines()[0] == f"handled {sent.id}", errors
    assert hooks.message(sent.id)["state"] == "Finished"
