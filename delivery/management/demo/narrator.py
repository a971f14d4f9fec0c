"""Print what happens in the demo, once the broker is ready."""

import os
import signal
import threading
import time
from collections.abc import Callable

import requests
from django.db import Error as DatabaseFailure
from django.db import connection
from django.urls import NoReverseMatch, reverse

from channels_app.core import ids
from delivery.cluster.supervisor import Supervisor
from delivery.core.lifecycle import DeliveryState
from delivery.management.demo import pages
from delivery.management.demo.numbers import Counts, Numbers
from delivery.management.demo.shop import Shop
from delivery.management.demo.stage import CHANNEL, Stage
from delivery.models import Delivery

LINE_S = 2.0
POLL_S = 0.5
START_S = 60.0
SETTLE_S = 1.0
"""Seconds after the last message, for deliveries in flight to arrive and be counted."""

Say = Callable[[str], None]


class Narrator(threading.Thread):
    """Runs beside the supervisor, which has the main thread."""

    def __init__(
        self,
        stage: Stage,
        say: Say,
        supervisor: Supervisor,
        *,
        rate: float,
        seconds: float | None,
    ) -> None:
        super().__init__(name="narrator", daemon=True)
        self.stage = stage
        self.failed = ""
        """Why the demo failed; '' if it did not."""
        self._say = say
        self._supervisor = supervisor
        self._rate = rate
        self._seconds = seconds
        self._stopped = threading.Event()
        url = f"{stage.web.url}/api/v1/channels/{CHANNEL}/messages"
        self._shop = Shop(url, stage.key, rate)
        self._numbers = Numbers(stage, ids.first_id_at(int(time.time() * 1000)))
        self._before: dict[str, Counts] = {}
        self._announced: set[str] = set()
        self._trouble_since: float | None = None
        self._begun = 0.0
        self._ended: float | None = None

    def run(self) -> None:
        """Print until the end; stop the process when ``seconds`` have passed."""
        try:
            self._before = self._numbers.counts()
            if self._is_ready():
                self._say(pages.banner(self.stage, self._rate))
                self._say(pages.HEAD)
                self._begun = time.monotonic()
                self._shop.start()
                self._tell()
            elif not self._stopped.is_set():
                self.failed = (
                    f"The broker was not ready after {START_S:.0f} s. See the "
                    f"lines above, and {self.stage.web.url}/readyz."
                )
        finally:
            if not self._stopped.is_set():
                self._end()
                self._stopped.wait(SETTLE_S)
                self._numbers.ask_receiver()
            connection.close()
            # The supervisor handles the signal, stops all processes and returns.
            os.kill(os.getpid(), signal.SIGTERM)

    def finish(self) -> str:
        """Stop printing; return the summary, or why there is none."""
        self._stopped.set()
        self._end()
        self.join()
        if self.failed or not self._begun:
            return self.failed or "Stopped before the broker was ready."
        return pages.summary(
            self._elapsed,
            self._shop.accepted,
            self._shop.repeats,
            self._counts(),
            self._numbers.latencies(["healthy"]),
            self._numbers.checked,
        )

    def _end(self) -> None:
        self._shop.stop()
        self._ended = self._ended or time.monotonic()

    def _is_ready(self) -> bool:
        end = time.monotonic() + START_S
        while time.monotonic() < end and not self._stopped.is_set():
            if all(
                _answers(url) for url in (self.stage.web.url + "/readyz", self.stage.receiver.url)
            ):
                return True
            self._stopped.wait(0.2)
        return False

    def _tell(self) -> None:
        next_line, lines, accepted, at = self._begun + LINE_S, 0, 0, self._begun
        while not self._stopped.wait(POLL_S):
            if self._supervisor.is_stopping:
                self._end()  # the web server stops, so the shop must stop publishing
                continue
            if self._seconds is not None and self._elapsed >= self._seconds:
                return
            try:
                self._tell_events()
                if time.monotonic() < next_line:
                    continue
                counts = self._counts()
            except DatabaseFailure:
                continue  # busy: try again in half a second
            now, total = time.monotonic(), self._shop.accepted
            if lines and lines % pages.REPEAT_HEAD == 0:
                self._say(pages.HEAD)
            rate = (total - accepted) / (now - at)
            self._say(pages.line(self._elapsed, total, rate, counts))
            self._numbers.ask_receiver()
            next_line, lines, accepted, at = next_line + LINE_S, lines + 1, total, now

    def _tell_events(self) -> None:
        self._tell_trouble()
        for name, state, sentence in (
            ("healthy", DeliveryState.DELIVERED, _first_delivery),
            ("recovering", DeliveryState.DELIVERED, _recovery),
            ("failing", DeliveryState.DEAD, self._dead_letter),
        ):
            if name in self._announced:
                continue
            if (delivery := self._numbers.first(name, state)) is not None:
                self._announced.add(name)
                self._say(pages.event(self._elapsed, *sentence(delivery)))
        is_open = self._numbers.open_circuits()
        for name in self.stage.consumers:
            topic = f"circuit of {name}"
            if name in is_open and topic not in self._announced:
                self._announced.add(topic)
                text = f"{name}: its circuit opened: the broker only probes it"
                self._say(pages.event(self._elapsed, text))
            elif name not in is_open:
                self._announced.discard(topic)

    def _tell_trouble(self) -> None:
        """Report a shop that cannot publish, once this has lasted a moment."""
        trouble, now = self._shop.trouble, time.monotonic()
        if not trouble:
            if "trouble" in self._announced:
                self._say(pages.event(self._elapsed, "the shop publishes again; nothing was lost"))
            self._announced.discard("trouble")
            self._trouble_since = None
            return
        self._trouble_since = self._trouble_since or now
        if now - self._trouble_since > 1.0 and "trouble" not in self._announced:
            self._announced.add("trouble")
            self._say(pages.event(self._elapsed, f"the shop keeps trying: {trouble}"))

    def _dead_letter(self, delivery: Delivery) -> tuple[str, str]:
        text = f"failing: first dead letter after {delivery.failure_count} attempts. Replay it at"
        return text, self.stage.web.url + _address(delivery)

    def _counts(self) -> dict[str, Counts]:
        counts = self._numbers.counts()
        return {name: count.since(self._before[name]) for name, count in counts.items()}

    @property
    def _elapsed(self) -> float:
        return (self._ended or time.monotonic()) - self._begun


def _first_delivery(delivery: Delivery) -> tuple[str]:
    took = (delivery.finished_at or delivery.accepted_at) - delivery.accepted_at
    milliseconds = pages.timed(took.total_seconds())
    return (f"healthy: first message delivered, {milliseconds} after it was accepted",)


def _recovery(delivery: Delivery) -> tuple[str]:
    tries = f"{delivery.failure_count} failures"
    return (f"recovering: first message accepted after {tries}",)


def _address(delivery: Delivery) -> str:
    """Return the URL of the delivery in the console, or in the API."""
    try:
        return reverse("admin:delivery_delivery_change", args=[delivery.id])
    except NoReverseMatch:
        return f"/api/v1/deliveries/{ids.to_public('dlv', delivery.id)}"


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=2).ok
    except requests.RequestException:
        return False
