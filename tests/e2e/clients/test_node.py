"""The Node.js client against a real broker: clients/node/test/broker."""

import pytest
from hookstation_client import Hookstation

from tests.support import node
from tests.support.broker import Broker

pytestmark = pytest.mark.e2e

STREAMED = ["stream.test.mjs", "worker.test.mjs"]
FILES = sorted(path.name for path in (node.SOURCE / "test/broker").glob("*.test.mjs"))


@pytest.mark.parametrize("name", [name for name in FILES if name != "stream.test.mjs"])
def test_client_passes_its_tests_with_a_broker(hooks: Hookstation, name: str) -> None:
    environment = {"HOOKSTATION_URL": hooks.url, "HOOKSTATION_KEY": hooks.key}

    node.run_tests(node.require(), "broker", name.partition(".")[0], **environment)


@pytest.mark.parametrize("name", STREAMED)
def test_client_passes_its_tests_over_streams(
    broker: Broker, hooks: Hookstation, name: str
) -> None:
    environment = {
        "HOOKSTATION_URL": hooks.url,
        "HOOKSTATION_KEY": hooks.key,
        "HOOKSTATION_GRPC_URL": f"grpc://{broker.environment['HOOKSTATION_GRPC_ADDRESS']}",
    }

    node.run_tests(node.require(), "broker", name.partition(".")[0], **environment)
