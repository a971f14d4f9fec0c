"""The packages of other languages with a real broker: their own tests that need one."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hookstation_client import Hookstation

from tests.support import node, toolchains
from tests.support.toolchains import GO, GO_GRPC, built, passed

pytestmark = pytest.mark.e2e

Environment = Mapping[str, str]
STREAMED = ["stream.test.mjs", "worker.test.mjs"]
"""Files of the Node.js client that are run with streams; the first one needs them."""
PACKAGES = [
    (node.build_client, node.SOURCE),
    (node.build_bullmq, node.BULLMQ),
    (node.build_bull, node.BULL),
]
FILES = [
    pytest.param(build, path.name, over, id=f"{source.name}-{path.name}-{over}")
    for build, source in PACKAGES
    for path in sorted((source / "test/broker").glob("*.test.mjs"))
    for over in ("rest", "stream")
    if (path.name in STREAMED if over == "stream" else path.name != STREAMED[0])
]


@pytest.fixture
def addresses(environment: Environment) -> Environment:
    """Over REST nothing listens at the first address: every call goes on with the second one."""
    if "HOOKSTATION_GRPC_URL" in environment:
        return environment
    return {
        **environment,
        "HOOKSTATION_URL": f"http://127.0.0.1:1,{environment['HOOKSTATION_URL']}",
    }


def java_classes() -> str:
    """The class path of the Java client without its streams."""
    return str(toolchains.build_java() / "classes")


@pytest.mark.parametrize(
    ("folder", "need", "pattern", "least", "hooks"),
    [
        (GO, lambda: toolchains.need("go"), "Worker|Receive|Move", 10, "rest"),
        (GO_GRPC, toolchains.need_go_grpc, "TestWorker$|Streaming", 15, "stream"),
    ],
    indirect=["hooks"],
    ids=["rest", "streams"],
)
def test_client_for_go_passes_its_tests_with_a_broker(
    folder: Path,
    need: Callable[[], None],
    pattern: str,
    least: int,
    addresses: Environment,
) -> None:
    built(need)

    said = toolchains.go_tests(folder, "-run", pattern, **addresses)

    assert "--- SKIP" not in said
    assert passed(said, "^ *--- PASS") >= least, said


@pytest.mark.parametrize(
    ("path", "name", "least", "hooks"),
    [
        (java_classes, "BrokerTests", 10, "rest"),
        (toolchains.java_path, "BrokerTests", 10, "stream"),
        (toolchains.java_path, "StreamTests", 8, "stream"),
    ],
    indirect=["hooks"],
)
def test_client_for_java_passes_its_tests_with_a_broker(
    path: Callable[[], str], name: str, least: int, addresses: Environment
) -> None:
    assert passed(toolchains.java_tests(built(path), name, **addresses)) >= least


def test_every_package_for_node_has_tests_with_a_broker() -> None:
    assert all([*source.glob("test/broker/*.test.mjs")] for _, source in PACKAGES)


@pytest.mark.parametrize(("build", "name", "hooks"), FILES, indirect=["hooks"])
def test_package_for_node_passes_its_tests_with_a_broker(
    build: Callable[[], Path], name: str, environment: Environment
) -> None:
    node.run_tests(built(build), "broker", name.partition(".")[0], **environment)


@pytest.mark.parametrize(
    ("path", "hooks", "warning"),
    [
        (java_classes, "rest", ""),
        (toolchains.java_path, "stream", ""),
        (java_classes, "stream", "hookstation-client-grpc is not on the class path"),
    ],
    indirect=["hooks"],
    ids=["rest", "streams", "rest-without-the-artifact-for-streams"],
)
def test_sigterm_ends_a_worker_in_java_when_its_handlers_have_ended(
    path: Callable[[], str],
    warning: str,
    environment: Environment,
    hooks: Hookstation,
    channel: str,
) -> None:
    hooks.register(channel, "packing")
    sent = hooks.publish(channel, b"x")
    tests = [*toolchains.JVM, "-cp", built(path), "dev.hookstation.client.BrokerTests"]
    process: Any = subprocess.Popen(
        [*tests, channel],
        env={**os.environ, **environment},
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
    assert warning in errors
    assert hooks.message(sent.id)["state"] == "Finished"
