"""Read how long a consumer's latest acknowledgements took (S3-30)."""

from typing import Any

from channels_app.models.hints import by_index
from delivery.models import Attempt, Delivery
from delivery.rules import ack_timeouts
from delivery.rules.acks import Bounds
from delivery.rules.lifecycle import DeliveryState, Reason

RECENT = 200
"""Deliveries to examine; takes a few milliseconds, however long the consumer's history is."""
_ENDS = (DeliveryState.DELIVERED, DeliveryState.DEAD)


def wait_ms(consumer_id: int, bounds: Bounds) -> float:
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
    return ack_timeouts.wait_ms(took_ms, silent, low=bounds.low_ms, high=bounds.high_ms)
