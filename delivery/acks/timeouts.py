"""Decide how long a delivery waits for its acknowledgement (S3-30)."""

import time
from typing import Any

from channels_app.database.raw import by_index
from channels_app.registry.cache import ConsumerConfig
from delivery.core import acks
from delivery.core.acks import Bounds
from delivery.core.lifecycle import DeliveryState, Reason
from delivery.models import Attempt, Delivery

RECENT = 200
"""Deliveries to examine; takes a few milliseconds, however long the consumer's history is."""
FRESH_S = 5.0
"""Seconds for which a value from the tables is used."""
_ENDS = (DeliveryState.DELIVERED, DeliveryState.DEAD)


class Waits:
    """Timeouts of consumers whose ``timeout_ms`` is adaptive; others need no query."""

    def __init__(self) -> None:
        self._timeouts: dict[int, tuple[float, float]] = {}
        """Milliseconds by consumer, and until when (`time.monotonic`) they are fresh."""
        self._wanted: dict[int, acks.Bounds] = {}

    def of(self, consumer: ConsumerConfig) -> float | None:
        """Return the timeout in milliseconds; None if it is fixed or not known yet."""
        bounds = acks.bounds_of(consumer.ack)
        if bounds is None:
            return None
        known_ms, fresh_until = self._timeouts.get(consumer.id, (bounds.high_ms, 0.0))
        if time.monotonic() >= fresh_until:
            self._wanted[consumer.id] = bounds
        return min(bounds.high_ms, max(bounds.low_ms, known_ms))

    def learn(self) -> None:
        """Read the timeouts that were requested and are not fresh."""
        while self._wanted:
            consumer_id, bounds = self._wanted.popitem()
            wait_ms = measured_wait_ms(consumer_id, bounds)
            self._timeouts[consumer_id] = (wait_ms, time.monotonic() + FRESH_S)


def measured_wait_ms(consumer_id: int, bounds: Bounds) -> float:
    """Return the timeout in milliseconds for this consumer's next acknowledgement.

    Only first attempts count: after a retry it is unknown which attempt was acknowledged.
    """
    rows: list[Any] = []
    for state in _ENDS:
        of_state = Delivery.objects.filter(consumer_id=consumer_id, state=state.value)
        recent = by_index(of_state, "delivery_list").order_by("-id")
        rows += recent.values_list("id", "reason", "attempt_count", "finished_at")[:RECENT]
    rows = sorted(rows, reverse=True)[:RECENT]
    acknowledged = {
        key: finished_at
        for key, reason, attempts, finished_at in rows
        if reason == Reason.ACKNOWLEDGED and attempts == 1
    }
    silent = sum(
        reason in {Reason.ACK_TIMEOUT, Reason.EXHAUSTED}
        or (reason == Reason.ACKNOWLEDGED and attempts > 1)
        for _, reason, attempts, _ in rows
    )
    firsts = Attempt.objects.filter(delivery_id__in=list(acknowledged), number=1)
    took_ms = [
        (acknowledged[key] - started_at).total_seconds() * 1000 - total_ms
        for key, started_at, total_ms in firsts.values_list("delivery_id", "started_at", "total_ms")
    ]
    return acks.wait_ms(took_ms, silent, low=bounds.low_ms, high=bounds.high_ms)
