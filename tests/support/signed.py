"""The headers of a delivery, for tests that call a consumer as the broker does."""

import time

from hookstation_client import sign


def headers_of(
    body: bytes,
    secret: str,
    *,
    id: str = "msg_1",
    event_type: str = "order.created",
    channel: str = "orders",
) -> dict[str, str]:
    """Return the headers of the second attempt, signed now."""
    at = int(time.time())
    return {
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": sign(secret, id, at, body),
        "Content-Type": "application/json",
        "Hookstation-Channel": channel,
        "Hookstation-Consumer": "shop",
        "Hookstation-Event-Type": event_type,
        "Hookstation-Attempt": "2",
        "Hookstation-Accepted-At": "2026-11-25T17:00:00.000Z",
    }
