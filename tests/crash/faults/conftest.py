"""Fixtures of the fault tests: a consumer, and a broker that delivers to it."""

from collections.abc import Iterator
from pathlib import Path
from subprocess import run
from sys import executable

import pytest

from tests.support.broker import ROOT, Broker, wait_until
from tests.support.receiver import Receiver

PATH = "/orders"
COUNTS_TIMEOUT_S = 300.0


@pytest.fixture(scope="module")
def consumer() -> Iterator[Receiver]:
    """A consumer that all tests of a module share."""
    with Receiver() as receiver:
        yield receiver


def installed(
    folder: Path, url: str, consumer: Receiver, *, key: str = "", path: str = PATH, **settings: str
) -> Iterator[Broker]:
    """Run a broker with a channel and that consumer; at the end its counters must agree.

    Without ``key`` the database is empty, and gets its tables and a key.
    """
    broker = Broker(folder, url, **settings)
    if not key:
        broker.manage("migrate", "--verbosity", "0")
        key = broker.create_key()
    broker.use(key)
    try:
        broker.start()
        broker.call("PUT", "/channels/orders", 201, json={})
        target = {"url": consumer.url(path), "max_in_flight": 16}
        broker.call("PUT", "/channels/orders/consumers/shop", 201, json=target)
        yield broker
        wait_until(
            lambda: _counts_agree(broker), COUNTS_TIMEOUT_S, "the counts do not agree", broker.log
        )
    finally:
        broker.end()


def _counts_agree(broker: Broker) -> bool:
    """Whether reconciliation without a grace period finds no error."""
    command = [executable, "manage.py", "reconcile", "--grace", "0s"]
    return run(command, cwd=ROOT, env=broker.environment, capture_output=True).returncode == 0
