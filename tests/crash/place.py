"""A test's own channel on a running broker, and the account of its messages after a crash."""

from collections import Counter
from collections.abc import Callable, Container
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import pytest

from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S, Failpoint, retry_until_done
from tests.crash.traffic import Traffic
from tests.support.broker import Broker, wait_until
from tests.support.receiver import Receiver

NEVER, ONCE, TWICE, THRICE = {0}, {1}, {2}, {3}
PERHAPS, PERHAPS_TWICE = {0, 1}, {1, 2}
SETTINGS = {
    # One process, so that all requests may share a commit; replaced soon after its death.
    "HOOKSTATION_WEB_WORKERS": "1",
    "GRANIAN_RESPAWN_INTERVAL": "0.2",
    "HOOKSTATION_LEASE_GRACE_MS": "2000",
}
"""Of the brokers that failpoints kill."""
_numbers = count(1)


@dataclass(slots=True)
class Place:
    """A running broker, and a channel of the test's own with its consumers."""

    broker: Broker
    point: Failpoint
    receiver: Receiver
    channel: str = field(default_factory=lambda: f"crash-{next(_numbers)}")
    step: str = ""
    """The failpoint of this test."""
    published: list[str] = field(default_factory=list)
    """Ids of the messages that must be stored in the channel, in their order."""
    pulled: list[str] = field(default_factory=list)
    """Ids of the messages that a pull consumer got, each time that it got one."""
    is_ordered: bool = False

    @property
    def path(self) -> str:
        return f"/channels/{self.channel}"

    @property
    def puller(self) -> str:
        return f"{self.path}/consumers/puller"

    @property
    def counts(self) -> Counts:
        """The broker's tables."""
        return Counts(self.broker)

    def dying(self) -> AbstractContextManager[None]:
        """Kill the process that reaches the test's failpoint inside the block."""
        return self.point.armed(self.step)

    def call(self, method: str, path: str, **options: Any) -> Any:
        """Call until there is a response; return its JSON."""
        return retry_until_done(self.broker, method, path, **options)[0]

    def wait_until(self, done: Callable[[], object], otherwise: str) -> None:
        """Wait for a state of the broker; a failure shows its log."""
        wait_until(lambda: bool(done()), TIMEOUT_S, otherwise, self.broker.log)

    def register(self, target: str = "/ok", **values: Any) -> None:
        """Make the channel and its consumer, which calls the test's own receiver."""
        self.is_ordered = bool(values.get("ordering"))
        self.call("PUT", self.path, json={})
        body = {"url": self.receiver.url(target), "timeout_ms": 30_000, **values}
        self.call("PUT", f"{self.path}/consumers/one", json=body)

    def register_puller(self) -> None:
        """Make the channel and a consumer that receives messages itself."""
        self.call("PUT", self.path, json={})
        self.call("PUT", self.puller, json={"mode": "pull"})

    def traffic(self, *others: Broker, **options: Any) -> Traffic:
        """Producers of the channel, on other hosts too, that outlive web processes."""
        brokers = self.broker, *others
        return Traffic(*brokers, channel=self.channel, may_die=True, **options)

    def publish(
        self, key: str, delay_ms: int = 0, ordering_key: str = "", number: int | None = None
    ) -> str:
        """Publish a message until it is acknowledged; return its id."""
        headers = {"Idempotency-Key": key, "Hookstation-Delay": str(delay_ms)}
        if ordering_key:
            headers["Hookstation-Ordering-Key"] = ordering_key
        if number is not None:
            headers["Hookstation-Producer-Seq"] = f"{number}"
        answer = self.call("POST", f"{self.path}/messages", data=key, headers=headers)
        message_id = str(answer["id"])
        self.published.append(message_id)
        return message_id

    def publish_batch(self, number: int, delay_ms: int = 0) -> list[str]:
        """Publish ``number`` messages in one request until it is acknowledged; return their ids."""
        items = [
            {"body": "x", "idempotency_key": f"item-{next(_numbers)}", "delay_ms": delay_ms}
            for _ in range(number)
        ]
        answer = self.call("POST", f"{self.path}/messages/batch", json=items)
        ids = [item["id"] for item in answer["items"]]
        self.published += ids
        return ids

    def make_due(self, message_id: str) -> None:
        """End the delay of a message."""
        self.call("PATCH", f"/messages/{message_id}", json={"delay_ms": 0})

    def arrivals(self) -> list[str]:
        """The message of each request to the receiver and of each receipt by a pull consumer."""
        pushed = [request.header("webhook-id") or "" for request in self.receiver.requests()]
        return pushed + self.pulled

    def settle(self) -> None:
        """Wait until no delivery is open, and check the counters."""
        self.counts.settle()

    def survive(self, crash: "Crash") -> None:
        """Run an operation with a crash: nothing is lost, and nothing comes twice unless promised.

        Each message is stored once. Those that the operation returns, or all if it returns None,
        come as often as the crash allows, any other message once. Those of an ordering key come in
        their order, and a repeat before the next one.
        """
        self.step = crash.step
        affected = crash.operation(self)
        self.settle()
        assert self.counts.message_count(self.channel) == len(self.published)
        arrivals = self.arrivals()
        came = Counter(arrivals)
        assert came.keys() <= set(self.published)
        for one in self.published:
            allowed = crash.times if affected is None or one in affected else ONCE
            assert came[one] in allowed, f"{one} came {came[one]} times"
        if self.is_ordered:
            assert arrivals == sorted(arrivals, key=self.published.index)


Operation = Callable[[Place], Container[str] | None]
"""What is done while a process dies. It returns the messages that the crash may repeat or lose,
or None for all. Markers of the function become markers of its rows."""


class Crash(NamedTuple):
    """A row of a table of crashes."""

    operation: Operation
    step: str
    """The failpoint at which the process dies."""
    times: Container[int]
    """How often its messages may come."""


def rows(
    operation: Operation, times: Container[int], *steps: str, smoke: bool = False
) -> list[Any]:
    """Return a row for each of these failpoints.

    Those inside a transaction also run on MariaDB, whose server rolls it back and holds its locks
    until then. What follows a kill between two transactions does not depend on the database.
    """
    marks = [*getattr(operation, "pytestmark", []), *([pytest.mark.smoke] if smoke else [])]
    return [
        pytest.param(
            Crash(operation, step, times),
            id=f"{operation.__name__}-{step}",
            marks=[*marks, pytest.mark.mysql] if step.startswith("in_") else marks,
        )
        for step in steps
    ]
