"""Compare the counters with the rows that they count, and correct those that differ."""

from collections import Counter as Tally

from django.db import transaction
from django.db.models import Count, Sum, Value

from channels_app.models import Consumer
from delivery.models import Counter, Delivery
from delivery.models.counter import MADE

SLOT = 14


def gap() -> int:
    """Return deliveries ever created minus the sum of all states: 0 unless the counts are wrong."""
    totals = Counter.totals()
    return totals.pop(MADE) - sum(totals.values())


def repair() -> int:
    """Correct consumers whose counts do not add up; return how many."""
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


def recount(consumer_id: int) -> bool:
    """Correct one consumer's counters from its rows; return whether they were wrong."""
    with transaction.atomic():
        # Without this lock two concurrent recounts would both apply the correction.
        Consumer.objects.select_for_update().get(id=consumer_id)
        wrong = difference(consumer_id)
        Counter.add(wrong, SLOT)
    return bool(wrong)


def difference(consumer_id: int) -> dict[tuple[int, str], int]:
    """Return what one consumer's counters lack, by consumer and state; empty if they are correct.

    Rows and counters always change in one transaction. A single statement that reads both therefore
    sees only real differences, and blocks no writer.
    """
    rows = Delivery.objects.filter(consumer_id=consumer_id).order_by()
    shares = Counter.objects.filter(consumer_id=consumer_id).order_by()
    actual = rows.values_list("state").annotate(number=Count("id"), side=Value(1))
    counted = shares.values_list("state").annotate(number=Sum("count"), side=Value(-1))
    wrong: Tally[tuple[int, str]] = Tally()
    for state, number, side in actual.union(counted, all=True):
        wrong[consumer_id, state] += side * int(number)
        if side > 0:
            wrong[consumer_id, MADE] += number
    return {key: number for key, number in wrong.items() if number}
