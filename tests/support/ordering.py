"""Publish, claim and settle messages with ordering keys, and check the keys' state."""

from collections.abc import Iterable
from datetime import datetime

from channels_app.models import Consumer
from delivery.core.lifecycle import ClaimedDelivery, DeliveryState, Reason, Transition
from delivery.core.ordering import BEHIND, key_number
from delivery.core.outcome import Outcome
from delivery.models import Counter, Delivery, OrderingKey, OrderingWaiter
from delivery.queue import claim, settle
from delivery.queue.claim import ClaimRequest
from delivery.queue.settle import Result
from tests.support import pumping
from tests.support.pumping import publish

LEASE_MS = 10_000
OPEN = ["queued", "in_flight", "awaiting_ack"]
ENDS = {
    "delivered": (
        Transition(DeliveryState.DELIVERED, Reason.DELIVERED, None, charged=False),
        Outcome.DELIVERED,
    ),
    "retry": (Transition(DeliveryState.QUEUED, Reason.RETRY, 60.0, charged=True), Outcome.TIMEOUT),
    "dead": (Transition(DeliveryState.DEAD, Reason.EXHAUSTED, None, charged=True), Outcome.TIMEOUT),
    "expired": (
        Transition(DeliveryState.CANCELLED, Reason.EXPIRED, None, charged=False),
        Outcome.EXPIRED,
    ),
}


def say(consumer: Consumer, text: str, **options: object) -> None:
    """Publish messages like ``A1 B1 A2``: the letter is the ordering key, the word is the body."""
    for word in text.split():
        publish(consumer.channel, word.encode(), ordering_key=word[0], event_type=word, **options)


def take(consumer: Consumer, now: datetime, limit: int = 100) -> list[ClaimedDelivery]:
    """Claim due deliveries."""
    want = ClaimRequest(consumer.id, limit, LEASE_MS, owner=1)
    return claim.claim([want], now=now, slot=0).rows


def end(rows: Iterable[ClaimedDelivery], how: str, now: datetime) -> int:
    """Settle attempts, all with the same outcome."""
    move, outcome = ENDS[how]
    results = [Result(row, move, outcome, now, "test") for row in rows]
    return settle.settle(results, now=now, slot=0)


def words(rows: Iterable[ClaimedDelivery]) -> str:
    """Return the words of these deliveries, sorted."""
    return " ".join(sorted(row.event_type for row in rows))


def key_number_of(consumer: Consumer, key: str) -> OrderingKey:
    """Return the row of an ordering key, which must exist."""
    return OrderingKey.objects.get(id=key_number(consumer.id, key))


def check(*, is_quiet: bool = True) -> None:
    """Check the invariants of ordering keys. ``is_quiet``: no sweep has work left."""
    for key_row in OrderingKey.objects.all():
        waiters = OrderingWaiter.objects.filter(key_number=key_row.id)
        behind = set(waiters.values_list("delivery_id", flat=True))
        assert key_row.head_id not in behind
        rows = Delivery.objects.filter(
            consumer_id=key_row.consumer_id, ordering_key=key_row.ordering_key
        )
        free = {row.id for row in rows.filter(state__in=OPEN) if not row.is_behind}
        if is_quiet:
            assert key_row.waiting_count == len(behind)
            assert free <= {key_row.head_id}, "two of one key may go"
            assert set(rows.filter(due_at=BEHIND).values_list("id", flat=True)) == behind
            assert free or key_row.paused_at or key_row.blocked_at, "it stands without reason"
    key_rows = set(OrderingKey.objects.values_list("id", flat=True))
    assert set(OrderingWaiter.objects.values_list("key_number", flat=True)) <= key_rows
    stranded = Delivery.objects.filter(due_at=BEHIND).exclude(
        id__in=OrderingWaiter.objects.values_list("delivery_id", flat=True)
    )
    assert not stranded.exists()
    assert Counter.totals() == pumping.recounted()
