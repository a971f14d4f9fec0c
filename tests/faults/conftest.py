"""What the faults share: a server, and an installation that delivers to one consumer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker import Broker
from tests.receiver import Receiver

PATH = "/orders"


@pytest.fixture(scope="module")
def consumer() -> Iterator[Receiver]:
    """A consumer that outlives a test."""
    with Receiver() as receiver:
        yield receiver


def installed(
    folder: Path, url: str, consumer: Receiver, *, path: str = PATH, **settings: str
) -> Iterator[Broker]:
    """A running broker with a channel and that consumer."""
    broker = Broker(folder, url, **settings)
    broker.set_up()
    try:
        broker.start()
        broker.call("PUT", "/channels/orders", 201, json={})
        target = {"url": consumer.url(path), "max_in_flight": 16}
        broker.call("PUT", "/channels/orders/consumers/shop", 201, json=target)
        yield broker
    finally:
        broker.http.close()
        if broker.process is not None and broker.process.poll() is None:
            broker.stop()
