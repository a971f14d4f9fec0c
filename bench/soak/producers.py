"""Publish messages at a steady rate, and repeat each until it is accepted."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Self

import requests

from bench.adapters import Route
from bench.bodies import body

PRODUCERS = 8
RETRY_S = 0.2
PATIENCE_S = 300.0
"""Seconds for which a message is repeated before the soak test fails."""


@dataclass(slots=True)
class Producers:
    """Threads that share a rate, and the acknowledged messages."""

    route: Route
    rate: float
    """Messages per second of all threads together."""
    acknowledged: set[str] = field(default_factory=set)
    answers: Counter[int] = field(default_factory=Counter)
    """Number of responses by status; 0 is a broken connection."""
    given_up: int = 0
    _stopped: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        for number in range(PRODUCERS):
            thread = threading.Thread(target=self._produce, args=[number], daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait until each thread has its last response."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _produce(self, number: int) -> None:
        place = number
        start = time.monotonic()
        with requests.Session() as http:
            http.trust_env = False
            while not self._stopped.is_set():
                self._hand_in(http, place)
                place += PRODUCERS
                due = start + place / self.rate
                self._stopped.wait(max(0.0, due - time.monotonic()))

    def _hand_in(self, http: requests.Session, number: int) -> None:
        to = self.route
        headers = {**to.headers, "Idempotency-Key": f"soak-{number}"}
        url, data = f"http://{to.host}:{to.port}{to.path}", to.pack([body(number)])
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                answer = http.post(url, data=data, headers=headers, timeout=20)
            except requests.RequestException:
                self.answers[0] += 1
            else:
                self.answers[answer.status_code] += 1
                if answer.ok:
                    self.acknowledged.add(answer.json()["id"])
                    return
            time.sleep(RETRY_S)
        self.given_up += 1
