"""Look up, extend and compare the leases of pull consumers' workers and of pumps."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from django.db import IntegrityError
from django.db.models import Count

from channels_app import failpoints
from channels_app.database import raw, transactions
from channels_app.database.raw import by_index, dialect
from delivery.core.leases import Lease
from delivery.core.lifecycle import DeliveryState
from delivery.core.outcome import Outcome
from delivery.models import Delivery, PullWorker

TABLE = Delivery._meta.db_table
RETENTION = timedelta(days=7)
"""How long the name of a worker that no longer receives is stored."""
BATCH = 500


def note_worker(owner: int, consumer_id: int, name: str, now: datetime) -> None:
    """Record the name of ``owner``; call this every few seconds, not for each receive."""
    if PullWorker.objects.filter(id=owner).update(seen_at=now):
        return
    try:
        PullWorker.objects.create(id=owner, consumer_id=consumer_id, name=name, seen_at=now)
    except IntegrityError:
        return  # another process was first, or the consumer has just been deleted


def delete_workers(now: datetime) -> int:
    """Delete workers last seen long ago, whose leases have all ended; return how many."""
    old = PullWorker.objects.filter(seen_at__lt=now - RETENTION)
    names = list(old.values_list("id", flat=True)[:BATCH])
    PullWorker.objects.filter(id__in=names).delete()
    return len(names)


def held(consumer_id: int, owner: int, most: int, now: datetime) -> list[int]:
    """Return a worker's unexpired deliveries of a consumer, oldest first."""
    rows = Delivery.objects.filter(
        consumer_id=consumer_id,
        state=DeliveryState.IN_FLIGHT.value,
        lease_owner=owner,
        due_at__gt=now,
    )
    return list(rows.order_by("id").values_list("id", flat=True)[:most])


def elsewhere(consumer_ids: Iterable[int], owner: int, now: datetime) -> dict[int, dict[int, int]]:
    """Return how many deliveries pumps other than ``owner`` hold, by consumer and pump."""
    wanted = sorted(consumer_ids)
    counts: dict[int, dict[int, int]] = {}
    for start in range(0, len(wanted), BATCH):
        rows = Delivery.objects.filter(
            consumer_id__in=wanted[start : start + BATCH],
            state=DeliveryState.IN_FLIGHT.value,
            lease_owner__gt=0,  # a pull worker's is negative
            due_at__gt=now,
        ).exclude(lease_owner=owner)
        holders = by_index(rows, "delivery_list").values_list("consumer_id", "lease_owner")
        for consumer_id, pump, count in holders.annotate(Count("id")):
            counts.setdefault(consumer_id, {})[pump] = count
    return counts


def extend(until: Mapping[Lease, datetime]) -> set[Lease]:
    """Extend leases to these times; return those that were still current.

    An expired lease can be extended as long as no other worker has claimed the delivery.
    """
    return transactions.run(lambda: _extend(until)) if until else set()


def ended_so(leases: Collection[Lease], outcome: Outcome) -> set[Lease]:
    """Return leases whose attempt already ended with this outcome and was the latest.

    A client that did not receive the response to an acknowledgement repeats it; that is no failure.
    """
    if not leases:
        return set()
    closed = set(
        raw.read(
            f"SELECT id, attempt_count FROM {TABLE} "
            f"WHERE id IN ({_keys(leases)}) AND state <> %s AND outcome = %s",
            [DeliveryState.IN_FLIGHT.value, outcome.value],
        )
    )
    return {lease for lease in leases if (lease.delivery_id, lease.attempt) in closed}


def event_types(delivery_ids: Iterable[int]) -> dict[int, str]:
    """Return the event type of each of these deliveries, by id."""
    ids = raw.listed(delivery_ids)
    return dict(raw.read(f"SELECT id, event_type FROM {TABLE} WHERE id IN ({ids})"))


def _extend(until: Mapping[Lease, datetime]) -> set[Lease]:
    held = set(
        raw.read(
            f"SELECT id, attempt_count FROM {TABLE} "
            f"WHERE id IN ({_keys(until)}) AND state = %s{dialect.locked}",
            [DeliveryState.IN_FLIGHT.value],
        )
    )
    ours = {lease for lease in until if (lease.delivery_id, lease.attempt) in held}
    by_end: dict[datetime, list[Lease]] = {}
    for lease in ours:
        by_end.setdefault(until[lease], []).append(lease)
    for end, group in by_end.items():
        raw.execute(
            f"UPDATE {TABLE} SET due_at = %s, version = version + 1 WHERE id IN ({_keys(group)})",
            [raw.text(end)],
        )
    failpoints.reach("in_extend")
    return ours


def _keys(leases: Collection[Lease]) -> str:
    return raw.listed(lease.delivery_id for lease in leases)
