"""What the faults share: a server, and an installation that delivers to one consumer."""

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
    """A consumer that outlives a test."""
    with Receiver() as receiver:
        yield receiver


def installed(
    folder: Path, url: str, consumer: Receiver, *, path: str = PATH, **settings: str
) -> Iterator[Broker]:
    """A running broker with a channel and that consumer; in the end its counts must agree."""
    broker = Broker(folder, url, **settings)
    broker.manage("migrate", "--verbosity", "0")
    broker.set_up()
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
    """Whether everything that was accepted is accounted for, without grace for what is open."""
    command = [executable, "manage.py", "reconcile", "--grace", "0s"]
    return run(command, cwd=ROOT, env=broker.environment, capture_output=True).returncode == 0
