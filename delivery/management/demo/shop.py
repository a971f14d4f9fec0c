"""Generate the events of a small shop, and publish them through the REST API as a producer does."""

import json
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import requests

TIMEOUT_S = 10.0
RETRY_PAUSE_S = 0.5
REPEAT_EVERY = 50
"""Every so many messages one is sent twice, like by a producer that missed the response."""
PER_THREAD = 40
"""Messages per second on one connection."""
MAX_THREADS = 16
# The generator need not be secure; this avoids a second one.
_chance = secrets.SystemRandom()

CUSTOMERS = ("Ada", "Amara", "Björn", "Chen", "Fatima", "Grace", "José", "Mina", "Noor", "Yuki")
GOODS = {
    "TEA-GREEN-100": 690,
    "TEA-EARL-GREY-250": 1290,
    "MUG-BLUE": 1450,
    "KETTLE-1L": 5900,
    "HONEY-500": 890,
    "BISCUITS-ORANGE": 420,
}
PRIORITIES = {
    "order.created": 5,
    "order.paid": 7,
    "order.shipped": 4,
    "order.cancelled": 6,
    "order.refunded": 6,
    "stock.low": 1,
}
"""Messages that customers wait for have priority over stock updates."""
OPEN_ORDERS = 40


@dataclass(frozen=True, slots=True)
class Event:
    """One message to publish."""

    type: str
    priority: int
    body: bytes
    key: str
    """Idempotency key."""


def happen() -> Iterator[Event]:
    """Yield events without end. Each order has its own life cycle, and these overlap."""
    number = int(datetime.now(UTC).timestamp()) % 1_000_000
    under_way: list[tuple[str, dict[str, Any]]] = []
    while True:
        if _chance.random() < 0.06:
            sku = _chance.choice(list(GOODS))
            yield _event("stock.low", {"sku": sku, "left": _chance.randint(0, 5)}, str(number))
        grown = len(under_way) >= OPEN_ORDERS
        if not under_way or (_chance.random() < 0.4 and not grown):
            number += 1
            order = _order(f"A-{number}")
            under_way.append(("order.created", order))
            yield _event("order.created", order, order["order"])
            continue
        kind, order = under_way.pop(_chance.randrange(len(under_way)))
        following = _next(kind)
        if following is None:
            continue
        under_way.append((following, order))
        yield _event(following, _detail(following, order), order["order"])


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


def _event(kind: str, data: dict[str, Any], subject: str) -> Event:
    now = datetime.now(UTC)
    document = {"type": kind, "timestamp": f"{now:%Y-%m-%dT%H:%M:%SZ}", "data": data}
    return Event(
        type=kind,
        priority=PRIORITIES[kind],
        body=json.dumps(document, ensure_ascii=False).encode(),
        key=f"{subject}-{kind}-{secrets.token_hex(4)}",
    )


def _order(name: str) -> dict[str, Any]:
    basket = {sku: _chance.randint(1, 4) for sku in _chance.sample(list(GOODS), 3)}
    items = [
        {"sku": sku, "quantity": quantity, "price_cents": GOODS[sku]}
        for sku, quantity in basket.items()
    ]
    return {
        "order": name,
        "customer": _chance.choice(CUSTOMERS),
        "items": items,
        "total_cents": sum(quantity * GOODS[sku] for sku, quantity in basket.items()),
        "currency": "EUR",
    }


def _next(kind: str) -> str | None:
    """Return the next event of an order; None at its end."""
    luck = _chance.random()
    if kind == "order.created":
        return "order.paid" if luck < 0.8 else "order.cancelled"
    if kind == "order.paid":
        return "order.shipped" if luck < 0.9 else "order.refunded"
    return None


def _detail(kind: str, order: dict[str, Any]) -> dict[str, Any]:
    base = {"order": order["order"], "customer": order["customer"]}
    if kind == "order.shipped":
        return base | {"carrier": "Post", "parcel": f"P{_chance.randrange(10**9):09}"}
    return base | {"total_cents": order["total_cents"], "currency": "EUR"}


def _reason(answer: requests.Response) -> str:
    """Return the status and, if the broker sent it, its error message."""
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = answer.reason
    return f"{answer.status_code} {detail}"
