"""Producers in threads that send each message with its idempotency key until it is acknowledged."""

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple, Self

import requests

from tests.support.broker import LEAST_PATIENCE_S, Broker, heard_ids, wait_until
from tests.support.receiver import Receiver

REFUSED = {503: "storage_unavailable", 507: "storage_full"}
"""Problem codes of the expected refusals, by status."""
RETRY_S = 0.3
RECOVERY_S = 60.0
"""Long, because these tests check whether the broker recovers, not how fast. Seconds."""


class Answer(NamedTuple):
    """A response, with the begin and end of its request by `time.monotonic`."""

    began: float
    ended: float
    status: int
    body: Mapping[str, object]
    retry_after: str


class Traffic:
    """Producers that publish to each broker in turn, inside a `with` block.

    At its end they begin no new message, and retry the current ones until they are acknowledged. A
    request without any response is a failure unless web processes ``may_die``.
    """

    def __init__(
        self,
        *brokers: Broker,
        channel: str = "orders",
        name: str = "",
        producers: int = 3,
        pause_s: float = 0.05,
        may_die: bool = False,
    ) -> None:
        self._brokers = brokers
        self._path = f"/channels/{channel}/messages"
        self._name = name
        self._pause_s = pause_s
        self._may_die = may_die
        self._stopped = threading.Event()
        self._patience_s = LEAST_PATIENCE_S
        self._threads = [
            threading.Thread(target=self._produce, args=(number,)) for number in range(producers)
        ]
        self._numbers = [0] * producers
        self.answers: list[Answer] = []
        self.broken: list[str] = []
        """Messages that were given up."""

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self._patience_s = 0.0 if error else self._patience_s
        self.stop()
        if not error:
            self.check()

    def stop(self) -> None:
        """Begin no new message; wait until the current ones are acknowledged."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    @property
    def acknowledged(self) -> set[str]:
        """Ids of all acknowledged messages."""
        return {str(answer.body["id"]) for answer in self._of(200, 202)}

    @property
    def refusals(self) -> int:
        """How many responses were 503 or 507."""
        return len(self._of(*REFUSED))

    @property
    def keys(self) -> int:
        """How many messages were sent, each with its own idempotency key."""
        return sum(self._numbers)

    def flows(self, more: int = 10) -> None:
        """Wait until more messages are acknowledged."""
        self._grows((200, 202), more, "nothing is acknowledged any more")

    def is_refused(self) -> None:
        """Wait until there are two more refusals per producer."""
        self._grows(tuple(REFUSED), 2 * len(self._threads), "nothing is refused")

    def check(self) -> None:
        """Check that every response was an acknowledgement or a refusal with Retry-After."""
        assert not self.broken, self.broken
        assert {answer.status for answer in self.answers} <= {200, 202, *REFUSED}
        for answer in self._of(*REFUSED):
            assert int(answer.retry_after) > 0
            assert answer.body["code"] == REFUSED[answer.status]

    def acknowledged_within(self, began: float, ended: float) -> int:
        """How many requests that began and ended in this period were acknowledged."""
        return sum(began <= one.began and one.ended <= ended for one in self._of(200, 202))

    def all_arrived(self, receiver: Receiver, path: str) -> None:
        """Wait until the consumer has received all acknowledged messages."""
        wait_until(
            lambda: self.acknowledged <= set(heard_ids(receiver, path)),
            RECOVERY_S,
            "acknowledged messages are missing",
            self._brokers[0].log,
        )

    def _grows(self, statuses: tuple[int, ...], more: int, otherwise: str) -> None:
        wanted = len(self._of(*statuses)) + more

        def has_grown() -> bool:
            assert not self.broken, self.broken
            return len(self._of(*statuses)) >= wanted

        wait_until(has_grown, RECOVERY_S, otherwise, self._brokers[0].log)

    def _of(self, *statuses: int) -> list[Answer]:
        return [answer for answer in self.answers if answer.status in statuses]

    def _produce(self, producer: int) -> None:
        with requests.Session() as http:
            http.trust_env = False
            while not self._stopped.is_set():
                number = self._numbers[producer]
                broker = self._brokers[number % len(self._brokers)]
                self._send(http, broker, f"{self._name}-{producer}-{number}")
                self._numbers[producer] += 1
                self._stopped.wait(self._pause_s)

    def _send(self, http: requests.Session, broker: Broker, key: str) -> None:
        first = began = time.monotonic()
        headers = {**broker.http.headers, "Idempotency-Key": key}
        while began < first + self._patience_s:
            try:
                # The address at this moment: a load balancer may lead it to another host.
                url = f"{broker.base}{self._path}"
                answer = http.post(url, data=key, headers=headers, timeout=RECOVERY_S)
                ended, after = time.monotonic(), answer.headers.get("Retry-After", "")
                self.answers.append(Answer(began, ended, answer.status_code, answer.json(), after))
                if answer.status_code not in REFUSED:
                    return
            except requests.RequestException as error:
                if not (self._may_die and isinstance(error, requests.ConnectionError)):
                    self.broken.append(f"{key}: {error}")
                    return
            time.sleep(RETRY_S)
            began = time.monotonic()
        self.broken.append(f"{key}: refused for ever")


def stored(broker: Broker, channel: str = "orders") -> list[str]:
    """Ids of all messages of a channel."""
    found: list[str] = []
    query = {"limit": 200, "cursor": None}
    while True:
        page = broker.call("GET", f"/channels/{channel}/messages", 200, params=query)
        found += [item["id"] for item in page["items"]]
        query["cursor"] = page["next"]
        if page["next"] is None:
            return found
