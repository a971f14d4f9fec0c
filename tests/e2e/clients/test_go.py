"""The client for Go against a real broker: its own tests that need one, of REST and of gRPC."""

import re

import pytest

from tests.support import toolchains
from tests.support.broker import Broker
from tests.support.toolchains import GO, GO_ENVIRONMENT, GO_GRPC, GO_GRPC_ENVIRONMENT, Missing

pytestmark = pytest.mark.e2e


def test_workers_settle_by_the_results_of_their_handlers(broker: Broker, key: str) -> None:
    toolchains.need_or_skip("go")

    said = toolchains.run(
        ["go", "test", "-count=1", "-v", "-run", "Worker|Receive|Move", "."],
        GO,
        {
            **GO_ENVIRONMENT,
            # Nothing listens at the first address: every call goes on with the second one.
            "HOOKSTATION_URL": f"http://127.0.0.1:1,http://127.0.0.1:{broker.port}",
            "HOOKSTATION_KEY": key,
        },
    )

    passed = re.findall(r"^ *--- PASS: (\S+)", said, re.MULTILINE)
    assert "--- SKIP" not in said
    assert len(passed) >= 10, said


def test_workers_over_a_stream(broker: Broker, key: str) -> None:
    try:
        toolchains.need_go_grpc()
    except Missing as missing:
        pytest.skip(str(missing))

    said = toolchains.run(
        ["go", "test", "-count=1", "-v", "-timeout", "500s", "-run", "TestWorker$|Streaming", "."],
        GO_GRPC,
        {
            **GO_GRPC_ENVIRONMENT,
            "HOOKSTATION_URL": f"http://127.0.0.1:{broker.port}",
            "HOOKSTATION_GRPC_URL": f"grpc://{broker.environment['HOOKSTATION_GRPC_ADDRESS']}",
            "HOOKSTATION_KEY": key,
        },
    )

    passed = re.findall(r"^ *--- PASS: (\S+)", said, re.MULTILINE)
    assert "--- SKIP" not in said
    assert len(passed) >= 15, said
