"""Generate events of a small shop: orders placed, paid, shipped, and sometimes refunded."""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

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


def _next(kind: str) -> str | None:
    """Return the next event of an order; None at its end."""
    luck = _chance.random()
    if kind == "order.created":
        return "order.paid" if luck < 0.8 else "order.cancelled"
    if kind == "order.paid":
        return "order.shipped" if luck < 0.9 else "order.refunded"
    return None


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


def _detail(kind: str, order: dict[str, Any]) -> dict[str, Any]:
    base = {"order": order["order"], "customer": order["customer"]}
    if kind == "order.shipped":
        return base | {"carrier": "Post", "parcel": f"P{_chance.randrange(10**9):09}"}
    return base | {"total_cents": order["total_cents"], "currency": "EUR"}


def _event(kind: str, data: dict[str, Any], subject: str) -> Event:
    now = datetime.now(UTC)
    document = {"type": kind, "timestamp": f"{now:%Y-%m-%dT%H:%M:%SZ}", "data": data}
    return Event(
        type=kind,
        priority=PRIORITIES[kind],
        body=json.dumps(document, ensure_ascii=False).encode(),
        key=f"{subject}-{kind}-{secrets.token_hex(4)}",
    )
