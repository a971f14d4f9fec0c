"""Workers of the client for Go over a gRPC stream, against a real broker: Go's own tests."""

import re
from collections.abc import Iterator

import pytest
from pytest_django import DjangoDbBlocker

from tests.support import broker as broker_module
from tests.support import streams, toolchains
from tests.support.broker import Broker
from tests.support.toolchains import GO_GRPC, GO_GRPC_ENVIRONMENT, Missing

pytestmark = pytest.mark.e2e

SETTINGS = {
    "HOOKSTATION_WEB_WORKERS": "1",
    # Larger than a body may be in a stream.
    "HOOKSTATION_MAX_BODY_BYTES": "5000000",
}


@pytest.fixture(scope="module")
def started(
    tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker
) -> Iterator[Broker]:
    """A broker that serves gRPC."""
    try:
        toolchains.need_go_grpc()
    except Missing as missing:
        pytest.skip(str(missing))
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
