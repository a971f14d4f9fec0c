"""Clients that know both hosts of an installation, while the hosts are killed in turn."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.failpoint import TIMEOUT_S
from tests.crash.hosts import two_hosts
from tests.crash.traffic import stored
from tests.support import conformance
from tests.support.broker import Broker, wait_until
from tests.support.conformance import DRIVERS, Driver, Proxy

pytestmark = pytest.mark.e2e
CLIENTS = [
    name
    for name, driver in sorted(DRIVERS.items())
    if name != "requests" and not driver.get("grpc")
]
"""The drivers of clients/conformance that take several addresses: all but plain HTTP. Those of
streams publish as the others do."""
SETTINGS = {"HOOKSTATION_WEB_WORKERS": "1", "HOOKSTATION_SHUTDOWN_GRACE_S": "4"}
BETWEEN = 20
"""Messages of each publisher that are stored before each kill, and after it."""
PAUSE_S = 0.05
"""Between two messages of a publisher: fast clients wait for slow ones."""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    with two_hosts(tmp_path, **SETTINGS) as pair:
        yield pair


class Publisher(threading.Thread):
    """Publish through a driver until told to end."""

    def __init__(self, driver: Driver, number: int) -> None:
        super().__init__(daemon=True)
        self._driver = driver
        self._number = number
        self.ending = threading.Event()
        self.stored: dict[str, str] = {}
        """Bodies by the id of each acknowledged message."""
        self.errors: list[Any] = []

    def run(self) -> None:
        n = 0
        while not self.ending.wait(PAUSE_S):
            body = json.dumps({"publisher": self._number, "n": n})
            try:
                answer = self._driver.ask("publish", channel="orders", body=body)
            except AssertionError as error:
                answer = {"error": str(error)}
            if "error" in answer:
                self.errors.append(answer["error"])
                return
            self.stored[answer["ok"]["id"]] = body
            n += 1


def test_callers_see_no_error_while_one_of_two_hosts_is_available(
    hosts: tuple[Broker, Broker],
) -> None:
    one, other = hosts
    one.call("PUT", "/channels/orders", 201, json={"idempotency_window_s": 3600})
    lacking = conformance.build_drivers(CLIENTS)
    # Before its kill, the first host stores a message of each client whose response is lost.
    ways = {client: Proxy(one.port) for client in CLIENTS if client not in lacking}
    drivers = [
        Driver(
            DRIVERS[client]["command"],
            {
                **DRIVERS[client].get("environment", {}),
                "HOOKSTATION_URL": f"{way.url},http://127.0.0.1:{other.port}",
                "HOOKSTATION_KEY": one.key,
            },
        )
        for client, way in ways.items()
        for _ in range(2)
    ]
    publishers = [Publisher(driver, number) for number, driver in enumerate(drivers)]
    try:
        for publisher in publishers:
            publisher.start()
        _go_on(publishers)
        for way in ways.values():
            way.drop_answers = 1  # one publisher loses a response, the other meets the kill
        wait_until(
            lambda: not any(way.drop_answers for way in ways.values()),
            TIMEOUT_S,
            "no answer was lost",
        )
        _kill(one)
        _go_on(publishers)
        one.start()
        _kill(other)
        _go_on(publishers)
        for publisher in publishers:
            publisher.ending.set()
            publisher.join(TIMEOUT_S)
        assert [publisher.errors for publisher in publishers] == [[]] * len(publishers)
    finally:
        for driver in drivers:
            driver.kill()
        for way in ways.values():
            way.close()

    told = {id: body for publisher in publishers for id, body in publisher.stored.items()}
    kept = stored(one)
    assert len(kept) == len(set(kept))
    assert set(kept) == set(told)
    assert len(set(told.values())) == len(told)
    if lacking:
        # Skipped, not passed: a run of all clients has to be told from one of some.
        pytest.skip(f"passed with all other clients: {lacking}")


def _go_on(publishers: list[Publisher]) -> None:
    """Wait until each has stored more messages, or failed."""
    before = [len(publisher.stored) for publisher in publishers]

    def done() -> bool:
        return all(
            publisher.errors or len(publisher.stored) >= count + BETWEEN
            for publisher, count in zip(publishers, before, strict=True)
        )

    wait_until(done, TIMEOUT_S, "the publishers do not go on")


def _kill(host: Broker) -> None:
    """Kill all processes of a host while requests are in flight."""
    assert host.process is not None
    os.killpg(host.process.pid, signal.SIGKILL)
    host.process.wait(TIMEOUT_S)
