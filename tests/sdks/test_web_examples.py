"""The example shops that need packages of Maven Central: `make test-sdks`."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hookstation_client import Hookstation

from tests.crash import test_examples as kills
from tests.crash.test_examples import Application, Stage
from tests.e2e.clients import test_web_examples as shops
from tests.support.broker import Broker
from tests.support.door import Door
from tests.support.examples import MAVEN

pytestmark = pytest.mark.e2e

broker, door, hooks = kills.broker, kills.door, kills.hooks


@pytest.mark.parametrize("version", ["before", "after"])
@pytest.mark.parametrize("framework", MAVEN)
def test_shop_stores_orders_once_and_rejects_invalid_ones(
    framework: str, version: str, hooks: Hookstation, tmp_path: Path
) -> None:
    channel = f"{framework}-{version}"
    hooks.create_channel(channel)
    shops.test_shop_stores_orders_once_and_rejects_invalid_ones(
        framework, version, hooks, channel, tmp_path
    )


def java_servlet(stage: Stage) -> Application:
    """A shop in a servlet."""
    return kills.web_shop(stage, "java-servlet")


def spring(stage: Stage) -> Application:
    """A shop on Spring Boot."""
    return kills.web_shop(stage, "spring")


@pytest.mark.parametrize("example", [java_servlet, spring])
def test_kills_lose_no_acknowledged_message(
    example: Callable[[Stage], Application],
    broker: Broker,
    hooks: Hookstation,
    door: Door,
    tmp_path: Path,
) -> None:
    kills.test_kills_lose_no_acknowledged_message(example, broker, hooks, door, tmp_path)
