"""Limit a producer to its rate, exactly and across all processes (S0-75)."""

from django.db.models import F, FloatField, Value
from django.db.models.functions import Greatest

from channels_app import clock, metrics
from channels_app.models import Producer, ProducerRate
from channels_app.rules.limits import Rate


def take(producer: Producer | None, count: int = 1) -> float | None:
    """Count ``count`` messages against a producer's rate; None if they may be accepted.

    If not, nothing is counted, and the result is the time to wait in seconds. More messages than
    the burst are accepted if the rate is unused, which is then used up for correspondingly long.
    """
    if producer is None or not producer.rate_per_second or count < 1:
        return None
    rate = Rate(producer.rate_per_second, producer.rate_burst)
    wait = _take(producer.id, count, rate)
    if wait is not None:
        metrics.THROTTLED.inc(count)
    return wait


def _take(producer_id: int, count: int, rate: Rate) -> float | None:
    now = clock.now().timestamp()
    # GCRA (rules/limits.py) as one UPDATE: a concurrent one waits for the row and sees the new
    # value.
    latest = now + rate.tolerance - (min(count, max(rate.burst, 1)) - 1) * rate.interval + 1e-6
    moved = Greatest(F("arrival_at"), Value(now, FloatField())) + Value(count * rate.interval)
    mine = ProducerRate.objects.filter(producer_id=producer_id)
    for _ in range(2):
        if mine.filter(arrival_at__lte=latest).update(arrival_at=moved):
            return None
        arrival = mine.values_list("arrival_at", flat=True).first()
        if arrival is not None:
            return max(arrival - latest, 0.001)
        ProducerRate.objects.get_or_create(producer_id=producer_id)
    return 1.0
