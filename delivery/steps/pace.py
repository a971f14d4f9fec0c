"""Estimate how many messages per second of one key a consumer can take (S2-64)."""

from datetime import timedelta

from channels_app.models.hints import by_index
from delivery.models import Attempt, Delivery
from delivery.rules.lifecycle import DeliveryState
from delivery.rules.outcome import Outcome

SAMPLE = 20
"""Deliveries examined, newest first."""
MIN_INTERVAL = timedelta(milliseconds=1)


def most_per_second(consumer_id: int) -> float | None:
    """Return the rate at which one key's deliveries can follow each other; None without data.

    A delivery holds its key for the response time, and if the consumer acknowledges later until it
    has done so; only then the next one is sent.
    """
    rows = Delivery.objects.filter(consumer_id=consumer_id, state=DeliveryState.DELIVERED.value)
    newest = by_index(rows, "delivery_list").order_by("-id")
    ended = dict(newest.values_list("id", "finished_at")[:SAMPLE])
    taken = Attempt.objects.filter(
        delivery_id__in=list(ended),
        outcome__in=[one.value for one in Outcome if one.is_success],
    ).order_by("delivery_id", "number")
    began = dict(taken.values_list("delivery_id", "started_at"))
    held = [at - began[key] for key, at in ended.items() if at is not None and key in began]
    if not held:
        return None
    return len(held) / sum((max(one, MIN_INTERVAL) for one in held), timedelta()).total_seconds()
