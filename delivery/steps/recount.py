"""Recount: compare the counters with the rows they count, and mend what does not agree."""

from django.db import transaction
from django.db.models import Count

from channels_app.models import Consumer
from delivery.models import Counter, Delivery
from delivery.models.counter import MADE

SLOT = 14


def gap() -> int:
    """Deliveries ever made minus the sum of all states: 0 unless the books are wrong."""
    totals = Counter.totals()
    return totals.pop(MADE) - sum(totals.values())


def mend() -> int:
    """Recount the consumers whose own books do not add up; returns how many were mended."""
    if gap() == 0:
        return 0
    counts = Counter.read(Consumer.objects.values_list("id", flat=True))
    wrong = [
        consumer_id
        for consumer_id, states in counts.items()
        if states[MADE] != sum(count for state, count in states.items() if state != MADE)
    ]
    for consumer_id in wrong:
        recount(consumer_id)
    return len(wrong)


def recount(consumer_id: int) -> None:
    """Make one consumer's counters equal to its rows.

    Whoever changes rows writes the counters last, in the same transaction: with the counter rows
    locked, every change is either committed with both or not visible at all.
    """
    with transaction.atomic():
        shares = Counter.objects.filter(consumer_id=consumer_id).order_by("id")
        known: dict[str, int] = {}
        for share in shares.select_for_update():
            known[share.state] = known.get(share.state, 0) + share.count
        rows = Delivery.objects.filter(consumer_id=consumer_id).values_list("state")
        actual: dict[str, int] = dict(rows.annotate(number=Count("id")).order_by())
        actual[MADE] = sum(actual.values())
        Counter.add(
            {
                (consumer_id, state): actual.get(state, 0) - known.get(state, 0)
                for state in known.keys() | actual.keys()
            },
            SLOT,
        )
