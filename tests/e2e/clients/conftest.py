"""One broker for all tests of this folder, and a channel for each test."""

from collections.abc import Iterator

import pytest
from hookstation_client import Hookstation

from tests.support import streams
from tests.support.broker import Broker, running

SETTINGS = {
    "HOOKSTATION_WEB_WORKERS": "1",
    # Larger than a body may be in a stream.
    "HOOKSTATION_MAX_BODY_BYTES": "5000000",
}


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("client"), **SETTINGS, **streams.setting()) as started:
        streams.wait_for_grpc(started)
        yield started


@pytest.fixture(scope="package")
def key(broker: Broker) -> str:
    return str(broker.http.headers["Authorization"]).partition(" ")[2]


@pytest.fixture
def hooks(broker: Broker, key: str) -> Iterator[Hookstation]:
    with Hookstation(f"http://127.0.0.1:{broker.port}", key=key, timeout=60) as client:
        yield client


@pytest.fixture
def channel(hooks: Hookstation, request: pytest.FixtureRequest) -> str:
    """A channel that no other test uses."""
    # Modules that import a test of another one have one of the same name.
    names = [request.path.stem, request.node.name]
    name = ".".join(one.removeprefix("test_") for one in names)
    name = name.replace("_", "-").replace("[", ".").rstrip("]")[:100]
    hooks.create_channel(name)
    return str(name)
