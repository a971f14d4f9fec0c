"""The Node.js client against a real broker: clients/node/test/broker."""

from pathlib import Path

import pytest
from hookstation_client import Hookstation

from tests.support import node

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]


@pytest.mark.parametrize("name", ["client", "worker"])
def test_client_does_with_a_broker_what_its_tests_say(hooks: Hookstation, name: str) -> None:
    client: Path = node.require()
    environment = {"HOOKSTATION_URL": hooks.url, "HOOKSTATION_KEY": hooks.key}

    node.run_tests(client, "broker", name, **environment)


def test_every_file_of_tests_is_run() -> None:
    found = {path.name for path in (node.SOURCE / "test/broker").glob("*.test.mjs")}

    assert found == {"client.test.mjs", "worker.test.mjs"}
