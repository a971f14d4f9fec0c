"""One broker with gRPC for all tests of this folder, and a channel for each test."""

from collections.abc import Iterator

import pytest

from tests.support import streams
from tests.support.broker import Broker, running
from tests.support.streams import Client

SETTINGS = {
    "HOOKSTATION_WEB_WORKERS": "1",
    # So long that only wake-ups are prompt.
    "HOOKSTATION_POLL_MS": "600000",
    "HOOKSTATION_MAX_BODY_BYTES": str(5 * 1024 * 1024),
}


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("grpc")
    with running(folder, **SETTINGS, **streams.setting()) as started:
        streams.wait_for_grpc(started)
        yield started


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client.of(broker) as made:
        yield made


@pytest.fixture
def channel(broker: Broker, request: pytest.FixtureRequest) -> str:
    """A channel that no other test uses, with the pull consumer ``all``."""
    name = request.node.name.removeprefix("test_").replace("_", "-").replace("[", ".")
    name = str(name.rstrip("]")[:100]).lower()
    broker.call("PUT", f"/channels/{name}", 201, json={"max_body_bytes": 5 * 1024 * 1024})
    broker.call("PUT", f"/channels/{name}/consumers/all", 201, json={"mode": "pull"})
    return name
