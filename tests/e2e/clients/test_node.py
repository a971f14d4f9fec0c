"""The Node.js client against a real broker: clients/node/test/broker."""

import pytest
from hookstation_client import Hookstation

from tests.support import node

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

FILES = sorted(path.name for path in (node.SOURCE / "test/broker").glob("*.test.mjs"))


@pytest.mark.parametrize("name", FILES)
def test_client_passes_its_tests_with_a_broker(hooks: Hookstation, name: str) -> None:
    environment = {"HOOKSTATION_URL": hooks.url, "HOOKSTATION_KEY": hooks.key}

    node.run_tests(node.require(), "broker", name.partition(".")[0], **environment)
