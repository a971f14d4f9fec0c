"""The Java client's workers over gRPC streams: the tests of workers again, and what differs."""

import os
import signal
import subprocess
from typing import Any

import pytest
from hookstation_client import Hookstation

from tests.e2e.clients import test_java
from tests.support import toolchains
from tests.support.broker import Broker
from tests.support.toolchains import JAVA

pytestmark = pytest.mark.e2e

TESTS = "dev.hookstation.client.StreamTests"

# The same tests: a worker over a stream does what a worker over REST does.
test_workers_settle_by_the_results_of_their_handlers = (
    test_java.test_workers_settle_by_the_results_of_their_handlers
)
test_sigterm_ends_a_worker = test_java.test_sigterm_ends_a_worker_when_its_handlers_have_ended


@pytest.fixture(scope="module")
def path() -> str:
    """The class path with the streams."""
    try:
        return toolchains.java_path()
    except toolchains.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def java(path: str) -> list[str]:
    """The command that runs the client's tests."""
    return [*toolchains.JVM, "-cp", path, test_java.TESTS]


@pytest.fixture
def environment(broker: Broker, key: str) -> dict[str, str]:
    return {
        "HOOKSTATION_URL": f"http://127.0.0.1:{broker.port}",
        "HOOKSTATION_KEY": key,
        "HOOKSTATION_GRPC_URL": f"grpc://{broker.environment['HOOKSTATION_GRPC_ADDRESS']}",
    }


def test_streams_and_rest_complete_each_other(path: str, environment: dict[str, str]) -> None:
    said = toolchains.run([*toolchains.JVM, "-cp", path, TESTS], JAVA, environment)

    assert "FAIL" not in said
    assert said.count("PASS") >= 8


def test_without_the_artifact_a_worker_uses_rest(
    environment: dict[str, str], hooks: Hookstation, channel: str
) -> None:
    toolchains.need_or_skip("java", "javac")
    classes = str(toolchains.build_java() / "classes")
    alone = [*toolchains.JVM, "-cp", classes, test_java.TESTS, channel]
    hooks.register(channel, "packing")
    sent = hooks.publish(channel, b"x")
    process: Any = subprocess.Popen(
        alone,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)

    assert first == f"began {sent.id}\n", errors
    assert "hookstation-client-grpc is not on the class path" in errors
    assert hooks.message(sent.id)["state"] == "Finished"
