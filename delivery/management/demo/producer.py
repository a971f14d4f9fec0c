"""Publish the shop's messages through the REST API, as any producer does."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import requests

from delivery.management.demo.events import Event, happen

TIMEOUT_S = 10.0
RETRY_PAUSE_S = 0.5
REPEAT_EVERY = 50
"""Every so many messages one is sent twice, like by a producer that missed the response."""
PER_THREAD = 40
"""Messages per second on one connection."""
MAX_THREADS = 16


@dataclass(slots=True)
class Shop:
    """Publishes at a steady rate until stopped."""

    url: str
    """URL of the channel's messages."""
    key: str = field(repr=False)
    rate: float
    """Messages per second."""
    accepted: int = 0
    repeats: int = 0
    """Repeated messages that the broker recognised."""
    trouble: str = ""
    """Why the last message was not accepted; '' if it was."""
    failures: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _events: Iterator[Event] = field(default_factory=happen)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Start publishing, on as many connections as the rate needs."""
        count = min(max(1, round(self.rate / PER_THREAD)), MAX_THREADS)
        for _ in range(count):
            thread = threading.Thread(target=self._publish, args=(self.rate / count,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stop publishing; returns when no request is in flight."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _publish(self, rate: float) -> None:
        next_at = time.monotonic()
        with requests.Session() as session:
            # Ignore the machine's proxy settings for this local demo.
            session.trust_env = False
            session.headers["Authorization"] = f"Bearer {self.key}"
            while not self._stopped.wait(max(0.0, next_at - time.monotonic())):
                # From now rather than from the due time: messages missed in a pause are not sent
                # later.
                next_at = max(next_at, time.monotonic() - 1.0) + 1.0 / rate
                with self._lock:
                    event = next(self._events)
                self._send_until_taken(session, event)

    def _send_until_taken(self, session: requests.Session, event: Event) -> None:
        """Send until accepted. The idempotency key makes a repeated request safe."""
        while not self._stopped.is_set():
            try:
                answer = self._send(session, event)
            except requests.RequestException as error:
                self._failed(f"no answer ({type(error).__name__})")
            else:
                if answer.ok:
                    self._taken(session, event, duplicate=answer.status_code == 200)
                    return
                self._failed(_reason(answer))
            self._stopped.wait(RETRY_PAUSE_S)

    def _taken(self, session: requests.Session, event: Event, *, duplicate: bool) -> None:
        with self._lock:
            self.trouble = ""
            self.accepted += 1
            self.repeats += duplicate
            repeat = not duplicate and self.accepted % REPEAT_EVERY == 0
        if repeat:
            try:
                answer = self._send(session, event)
            except requests.RequestException:
                return
            with self._lock:
                self.repeats += answer.status_code == 200

    def _failed(self, reason: str) -> None:
        with self._lock:
            self.trouble = reason
            self.failures += 1

    def _send(self, session: requests.Session, event: Event) -> requests.Response:
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": event.key,
            "Hookstation-Event-Type": event.type,
            "Hookstation-Priority": str(event.priority),
        }
        return session.post(self.url, data=event.body, headers=headers, timeout=TIMEOUT_S)


def _reason(answer: requests.Response) -> str:
    """Return the status and, if the broker sent it, its error message."""
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = answer.reason
    return f"{answer.status_code} {detail}"
