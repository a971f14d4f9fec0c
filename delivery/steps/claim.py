"""Claim: take due deliveries of chosen consumers under a lease, in index order (S0-34, S0-40).

One short range per consumer and priority level finds candidates without locking anything; only
those rows are then locked, by primary key. A consumer that may not be called now is never read,
so its pile costs its neighbours nothing.
"""

from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import connection
from django.db.models import F

from channels_app import transactions
from channels_app.models import new_id
from delivery.models import Attempt, Counter, Delivery
from delivery.rules.lifecycle import FREE_ATTEMPTS, DeliveryState, Reason
from delivery.rules.outcome import Outcome

T = TypeVar("T")

LEVELS = range(9, -1, -1)
CONSUMERS_PER_QUERY = 40
"""SQLite allows 500 terms of a union; 10 levels each."""
TABLE = Delivery._meta.db_table


@dataclass(frozen=True, slots=True)
class Want:
    """How much of one consumer's work to take."""

    consumer_id: int
    limit: int
    lease_ms: int
    oldest_first: bool = False
    """Ignore priority this time: the guard against starvation (S0-42)."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """One delivery that is ours until its lease ends."""

    id: int
    message_id: int
    consumer_id: int
    attempt: int
    """Number of this attempt, the fence of every write that closes it."""
    failure_count: int
    interruption_count: int
    priority: int
    due_at: datetime
    accepted_at: datetime
    event_type: str
    ordering_key: str
    replayed: bool
    lease_until: datetime


@dataclass(frozen=True, slots=True)
class Claim:
    """What one call took, and what it found on the way."""

    rows: list[Claimed]
    expired_count: int = 0
    """Rows whose last instant had passed: cancelled, not sent."""
    rescued_count: int = 0
    """Rows whose former holder let the lease lapse."""
    drained: frozenset[int] = frozenset()
    """Consumers that had no more due rows than were asked for."""


def claim(wants: Sequence[Want], *, now: datetime, owner: int, slot: int) -> Claim:
    """Lease due rows: ``in_flight``, ``attempt_count`` + 1, ``due_at`` at the lease's end.

    ``owner`` is the pump's generation, ``slot`` its counter share. Rows that another worker holds
    are skipped, never waited for.
    """
    parts = [_claim_group(group, now, owner, slot) for group in _groups(wants)]
    return Claim(
        rows=[row for part in parts for row in part.rows],
        expired_count=sum(part.expired_count for part in parts),
        rescued_count=sum(part.rescued_count for part in parts),
        drained=frozenset[int]().union(*(part.drained for part in parts)),
    )


def candidates_sql(wants: Sequence[Want], now: datetime) -> tuple[str, list[Any]]:
    """The query that finds what is due: one range per consumer and level, each in index order."""
    instant = connection.ops.adapt_datetimefield_value(now)
    term = (
        f"SELECT * FROM (SELECT id, consumer_id, priority, due_at FROM {TABLE} "
        "WHERE consumer_id = %s AND priority = %s AND due_at <= %s "
        "ORDER BY due_at, id LIMIT %s) AS t{}"
    )
    terms: list[str] = []
    values: list[Any] = []
    for want in wants:
        for level in LEVELS:
            terms.append(term.format(len(terms)))
            values += (want.consumer_id, level, instant, want.limit + 1)
    return " UNION ALL ".join(terms), values


def _claim_group(wants: Sequence[Want], now: datetime, owner: int, slot: int) -> Claim:
    chosen, drained = _choose(wants, now)
    if not chosen:
        return Claim([], drained=drained)
    leases = {want.consumer_id: want.lease_ms for want in wants}
    part = transactions.run(
        lambda: _take(chosen, leases, now, owner, slot), on_collision=new_id.reseed
    )
    return Claim(part.rows, part.expired_count, part.rescued_count, drained)


def _choose(wants: Sequence[Want], now: datetime) -> tuple[list[int], frozenset[int]]:
    """Ids to lock: the highest levels first, or the oldest where the guard says so."""
    found: dict[int, list[tuple[int, Any, int]]] = {want.consumer_id: [] for want in wants}
    for delivery_id, consumer_id, priority, due_at in _read(*candidates_sql(wants, now)):
        found[consumer_id].append((-priority, due_at, delivery_id))
    chosen: list[int] = []
    drained: set[int] = set()
    for want in wants:
        rows = found[want.consumer_id]
        rows.sort(key=(lambda row: row[1:]) if want.oldest_first else None)
        chosen += (row[2] for row in rows[: want.limit])
        if len(rows) <= want.limit:
            drained.add(want.consumer_id)
    return chosen, frozenset(drained)


def _take(chosen: list[int], leases: dict[int, int], now: datetime, owner: int, slot: int) -> Claim:
    found = list(
        Delivery.objects.filter(id__in=chosen, due_at__lte=now).select_for_update(skip_locked=True)
    )
    tally: Tally[tuple[int, str]] = Tally()
    lapsed = [row for row in found if row.state == DeliveryState.IN_FLIGHT]
    _record_lapsed(lapsed, now)
    expired = [row for row in found if row.expires_at and row.expires_at <= now]
    _finish(expired, DeliveryState.CANCELLED, Reason.EXPIRED, Outcome.EXPIRED, now, tally)
    worn = [row for row in found if row.interruption_count >= FREE_ATTEMPTS and row not in expired]
    _finish(worn, DeliveryState.DEAD, Reason.EXHAUSTED, Outcome.INTERRUPTED, now, tally)
    finished = {row.id for row in (*expired, *worn)}
    rows = [row for row in found if row.id not in finished]
    by_lease: dict[int, list[int]] = {}
    for row in rows:
        by_lease.setdefault(leases[row.consumer_id], []).append(row.id)
        tally[row.consumer_id, row.state] -= 1
        tally[row.consumer_id, DeliveryState.IN_FLIGHT.value] += 1
    for lease_ms, ids in by_lease.items():
        Delivery.objects.filter(id__in=ids).update(
            state=DeliveryState.IN_FLIGHT.value,
            reason=Reason.CLAIMED.value,
            attempt_count=F("attempt_count") + 1,
            due_at=now + timedelta(milliseconds=lease_ms),
            lease_owner=owner,
            version=F("version") + 1,
        )
    Counter.add(tally, slot)
    order = {delivery_id: place for place, delivery_id in enumerate(chosen)}
    rows.sort(key=lambda row: order[row.id])
    ends = {row.id: now + timedelta(milliseconds=leases[row.consumer_id]) for row in rows}
    return Claim([_claimed(row, ends[row.id]) for row in rows], len(expired), len(lapsed))


def _finish(
    rows: list[Delivery],
    state: DeliveryState,
    reason: Reason,
    outcome: Outcome,
    now: datetime,
    tally: Tally[tuple[int, str]],
) -> None:
    """End rows that are not to be sent (any more)."""
    if not rows:
        return
    for row in rows:
        tally[row.consumer_id, row.state] -= 1
        tally[row.consumer_id, state.value] += 1
    Delivery.objects.filter(id__in=[row.id for row in rows]).update(
        state=state.value,
        reason=reason.value,
        outcome=outcome.value,
        due_at=None,
        lease_owner=None,
        finished_at=now,
        version=F("version") + 1,
    )


def _record_lapsed(lapsed: list[Delivery], now: datetime) -> None:
    """The attempt that nobody closed becomes history; its holder can no longer close it."""
    if not lapsed:
        return
    Delivery.objects.filter(id__in=[row.id for row in lapsed]).update(
        interruption_count=F("interruption_count") + 1
    )
    Attempt.objects.bulk_create(
        [
            Attempt(
                id=new_id(),
                delivery_id=row.id,
                number=row.attempt_count,
                started_at=now,
                outcome=Outcome.LEASE_EXPIRED.value,
                error="The worker vanished before it could record an answer.",
            )
            for row in lapsed
        ]
    )


def _claimed(row: Delivery, lease_until: datetime) -> Claimed:
    assert row.due_at is not None
    return Claimed(
        id=row.id,
        message_id=row.message_id,
        consumer_id=row.consumer_id,
        attempt=row.attempt_count + 1,
        failure_count=row.failure_count,
        interruption_count=row.interruption_count,
        priority=row.priority,
        due_at=row.due_at,
        accepted_at=row.accepted_at,
        event_type=row.event_type,
        ordering_key=row.ordering_key,
        replayed=row.replay_id is not None,
        lease_until=lease_until,
    )


def _read(sql: str, values: list[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall())


def _groups(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), CONSUMERS_PER_QUERY):
        yield items[start : start + CONSUMERS_PER_QUERY]
