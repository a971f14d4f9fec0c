"""One broker for all tests of this folder, and a channel for each test."""

from collections.abc import Iterator, Mapping

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


@pytest.fixture
def hooks(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Hookstation]:
    """A client; with the parameter "stream" its workers receive and settle over gRPC."""
    is_streamed = getattr(request, "param", "rest") == "stream"
    grpc = f"grpc://{broker.environment['HOOKSTATION_GRPC_ADDRESS']}" if is_streamed else ""
    url = f"http://127.0.0.1:{broker.port}"
    with Hookstation(url, key=broker.key, timeout=60, grpc=grpc) as client:
        yield client


@pytest.fixture
def environment(hooks: Hookstation) -> Mapping[str, str]:
    """The environment variables with which another client is like ``hooks``."""
    found = {"HOOKSTATION_URL": hooks.url, "HOOKSTATION_KEY": hooks.key}
    return found | {"HOOKSTATION_GRPC_URL": hooks.grpc} if hooks.grpc else found


@pytest.fixture
def channel(hooks: Hookstation, request: pytest.FixtureRequest) -> str:
    """A channel that no other test uses."""
    # Two modules may have a test of the same name.
    names = [request.path.stem, request.node.name]
    name = ".".join(one.removeprefix("test_") for one in names)
    name = name.replace("_", "-").replace("[", ".").rstrip("]")[:100]
    hooks.create_channel(name)
    return str(name)
