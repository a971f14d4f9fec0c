"""Producers that retry, and measurements of the broker's processes meanwhile."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

import requests

from tests.support.broker import LEAST_PATIENCE_S, Broker, descendants, heard_ids, title, wait_until
from tests.support.receiver import Receiver

CHANNEL = "/channels/orders/messages"
REFUSED = {503: "storage_unavailable", 507: "storage_full"}
"""Problem codes of the expected refusals, by status."""
PRODUCERS = 3
PAUSE_S = 0.02
RECOVERY_S = 60.0
"""Long, because these tests check whether the broker recovers, not how fast. Seconds."""
LINES_PER_S = 12
"""Log lines that all processes may write per second of an outage, whatever the number of refusals.
A traceback counts as one line: django-q2 writes one every ten seconds."""
CPU_SHARE = 0.6
"""The share of a core that all processes together may use above the usual load. A loop without a
pause uses a whole core."""
USUAL_S = 2.0
RESTARTING = ("pusher", "monitor")
"""Processes of django-q2 that end with an error of the database; the cluster restarts them."""
_LINE = re.compile(r"^\d{4}-\d\d-\d\d ", re.MULTILINE)
_TICKS = os.sysconf("SC_CLK_TCK")


class Answer(NamedTuple):
    """A response, with the begin and end of its request by `time.monotonic`."""

    began: float
    ended: float
    status: int
    body: Mapping[str, object]
    retry_after: str


class Traffic:
    """Producers that send each message with its idempotency key until it is acknowledged."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._url = f"{broker.base}{CHANNEL}"
        self._headers = dict(broker.http.headers)
        self._name = name
        self._stopped = threading.Event()
        self._patience_s = LEAST_PATIENCE_S
        self._threads = [
            threading.Thread(target=self._produce, args=(number,)) for number in range(PRODUCERS)
        ]
        self._numbers = [0] * PRODUCERS
        self.answers: list[Answer] = []
        self.broken: list[str] = []
        """Requests without any response."""

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """Begin no new message; retry the current ones until they are acknowledged."""
        self._stopped.set()
        self._patience_s = 0.0 if error else self._patience_s
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

    def flows(self, otherwise: str, more: Callable[[], str]) -> None:
        """Wait until ten more messages are acknowledged."""
        wanted = len(self._of(202)) + 10
        wait_until(lambda: len(self._of(202)) >= wanted, RECOVERY_S, otherwise, more)

    def is_refused(self, more: Callable[[], str]) -> None:
        """Wait until there are two more refusals per producer."""
        wanted = self.refusals + 2 * PRODUCERS
        wait_until(lambda: self.refusals >= wanted, RECOVERY_S, "nothing is refused", more)

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

    def _of(self, *statuses: int) -> list[Answer]:
        return [answer for answer in self.answers if answer.status in statuses]

    def _produce(self, producer: int) -> None:
        with requests.Session() as http:
            http.trust_env = False
            http.headers.update(self._headers)
            while not self._stopped.is_set():
                self._send(http, f"{self._name}-{producer}-{self._numbers[producer]}")
                self._numbers[producer] += 1
                self._stopped.wait(PAUSE_S)

    def _send(self, http: requests.Session, key: str) -> None:
        first = began = time.monotonic()
        while began < first + self._patience_s:
            try:
                answer = http.post(
                    self._url, data=key, headers={"Idempotency-Key": key}, timeout=RECOVERY_S
                )
            except requests.RequestException as error:
                self.broken.append(f"{key}: {error}")
                return
            after = answer.headers.get("Retry-After", "")
            self.answers.append(
                Answer(began, time.monotonic(), answer.status_code, answer.json(), after)
            )
            if answer.status_code not in REFUSED:
                return
            time.sleep(0.3)
            began = time.monotonic()
        self.broken.append(f"{key}: refused for ever")


def all_arrived(receiver: Receiver, path: str, traffic: Traffic, broker: Broker) -> None:
    """Wait until the consumer has received all acknowledged messages."""
    wait_until(
        lambda: traffic.acknowledged <= set(heard_ids(receiver, path)),
        RECOVERY_S,
        "acknowledged messages are missing",
        broker.log,
    )


def usual_cpu(broker: Broker) -> float:
    """The share of a core that this traffic needs on this machine without a fault."""
    cpu, began = _cpu_s(broker), time.monotonic()
    time.sleep(USUAL_S)
    return (_cpu_s(broker) - cpu) / (time.monotonic() - began)


@contextmanager
def calm(broker: Broker, usual: float = 0.0) -> Iterator[None]:
    """Check that inside the block no process floods the log or runs in a busy loop.

    ``usual`` is the share of a core that continuing traffic needs.
    """
    began, lines, cpu = time.monotonic(), _lines(broker), _cpu_s(broker)
    yield
    seconds = time.monotonic() - began
    written = _lines(broker) - lines
    used = _cpu_s(broker) - cpu
    assert written <= LINES_PER_S * (seconds + 1), broker.log()[-5000:]
    told = f"{used:.1f} s of {seconds:.1f} s, {usual:.2f} of a core before"
    assert used <= (usual + CPU_SHARE) * seconds, told


def processes(broker: Broker) -> dict[int, str]:
    """Titles of the broker's living processes by id, except those of RESTARTING.

    A fork starts with its parent's title, so this waits until these have set their own.
    """
    assert broker.process is not None
    owner = broker.process.pid

    found: dict[int, str] = {}

    def has_restarting() -> bool:
        found.clear()
        found.update({pid: text for pid in (owner, *descendants(owner)) if (text := title(pid))})
        return all(any(one in text for text in found.values()) for one in RESTARTING)

    wait_until(has_restarting, RECOVERY_S, "no pusher or no monitor", broker.log)
    return {pid: text for pid, text in found.items() if not any(one in text for one in RESTARTING)}


def check_same_processes(broker: Broker, before: dict[int, str]) -> None:
    """Check that no process ended since ``before``. A failure shows their titles."""
    now = processes(broker)
    assert now.keys() == before.keys(), (before, now, broker.log()[-5000:])


def open_files(broker: Broker) -> dict[int, int]:
    """How many file descriptors each process has open."""
    return {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in processes(broker)}


def _lines(broker: Broker) -> int:
    return len(_LINE.findall(broker.log()))


def _cpu_s(broker: Broker) -> float:
    return sum(map(_of_process, processes(broker)))


def _of_process(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS
