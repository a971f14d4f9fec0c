"""Release: give back rows whose worker died or stops, at once instead of after their lease."""

from collections import Counter as Tally
from collections.abc import Iterable
from datetime import datetime

from django.db.models import F

from channels_app import transactions
from channels_app.models import Consumer, new_id
from delivery import metrics
from delivery.models import Attempt, Counter, Delivery
from delivery.rules.lifecycle import DeliveryState, Reason
from delivery.rules.outcome import Outcome

BATCH = 500


def release_owner(owner: int, *, now: datetime, slot: int) -> int:
    """Queue again everything that the pump of generation ``owner`` held; returns how many.

    The consumers' budgets are not charged: it was not their fault.
    """
    consumer_ids = list(Consumer.objects.values_list("id", flat=True))
    total = 0
    while released := transactions.run(
        lambda: _release(owner, consumer_ids, now, slot), on_collision=new_id.reseed
    ):
        total += released
    metrics.SWEPT.labels("orphaned_lease").inc(total)
    return total


def _release(owner: int, consumer_ids: Iterable[int], now: datetime, slot: int) -> int:
    rows = list(
        Delivery.objects.filter(
            consumer_id__in=consumer_ids,  # the index begins with it
            state=DeliveryState.IN_FLIGHT.value,
            lease_owner=owner,
        ).select_for_update(skip_locked=True)[:BATCH]
    )
    if not rows:
        return 0
    Attempt.objects.bulk_create(
        [
            Attempt(
                id=new_id(),
                delivery_id=row.id,
                number=row.attempt_count,
                started_at=now,
                outcome=Outcome.INTERRUPTED.value,
                error="The worker stopped before it could record an answer.",
            )
            for row in rows
        ]
    )
    Delivery.objects.filter(id__in=[row.id for row in rows]).update(
        state=DeliveryState.QUEUED.value,
        reason=Reason.INTERRUPTED.value,
        outcome=Outcome.INTERRUPTED.value,
        due_at=now,
        lease_owner=None,
        interruption_count=F("interruption_count") + 1,
        version=F("version") + 1,
    )
    tally: Tally[tuple[int, str]] = Tally()
    for row in rows:
        tally[row.consumer_id, DeliveryState.IN_FLIGHT.value] -= 1
        tally[row.consumer_id, DeliveryState.QUEUED.value] += 1
    Counter.add(tally, slot)
    return len(rows)
