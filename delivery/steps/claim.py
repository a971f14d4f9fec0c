"""Claim: take due deliveries of chosen consumers under a lease, in index order (S0-34, S0-40).

One short range per consumer and priority level finds candidates without locking anything; only
those rows are then locked, by primary key. A consumer that may not be called now is never read,
so its pile costs its neighbours nothing.
"""

from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from channels_app import failpoints, transactions
from channels_app.directory import directory
from channels_app.models import new_id, raw
from delivery import acks, lanes
from delivery.lanes import Leaver
from delivery.models import Attempt, Counter, Delivery
from delivery.rules.claimed import Claimed
from delivery.rules.lifecycle import FINISHED, FREE_ATTEMPTS, DeliveryState, Reason
from delivery.rules.outcome import Outcome

T = TypeVar("T")

AT_ONCE = timedelta(0)
LEVELS = range(9, -1, -1)
CONSUMERS_PER_QUERY = 40
"""SQLite allows 500 terms of a union; 10 levels each."""
TABLE = Delivery._meta.db_table
LAPSED = raw.Insert(
    Attempt,
    numbers=("id", "delivery_id", "number"),
    values=("started_at", "error"),
    same={"outcome": Outcome.LEASE_EXPIRED.value},
)


@dataclass(frozen=True, slots=True)
class Want:
    """How much of one consumer's work to take."""

    consumer_id: int
    limit: int
    lease_ms: int
    oldest_first: bool = False
    """Ignore priority this time: the guard against starvation (S0-42)."""


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


def claim(
    wants: Sequence[Want], *, now: datetime, owner: int, slot: int, ahead: timedelta = AT_ONCE
) -> Claim:
    """Lease due rows: ``in_flight``, ``attempt_count`` + 1, ``due_at`` at the lease's end.

    ``owner`` is the pump's generation, ``slot`` its counter share. Rows that another worker holds
    are skipped, never waited for. What waits and is due within ``ahead`` is taken too, for a
    worker that keeps it until then (``Claimed.due_at``); no lease ends sooner by it.
    """
    parts = [_claim_group(group, now, owner, slot, ahead) for group in _groups(wants)]
    return Claim(
        rows=[row for part in parts for row in part.rows],
        expired_count=sum(part.expired_count for part in parts),
        rescued_count=sum(part.rescued_count for part in parts),
        drained=frozenset[int]().union(*(part.drained for part in parts)),
    )


def claim_chosen(chosen: list[int], want: Want, *, now: datetime, owner: int, slot: int) -> Claim:
    """The same for rows of one consumer that the caller chose among those that are due."""
    if not chosen:
        return Claim([])
    leases = {want.consumer_id: want.lease_ms}
    part = transactions.run(
        lambda: _take(chosen, leases, now, owner, slot, AT_ONCE), on_collision=new_id.reseed
    )
    failpoints.reach("after_claim")
    return part


def candidates_sql(wants: Sequence[Want], now: datetime) -> tuple[str, list[Any]]:
    """The query that finds what is due: one range per consumer and level, each in index order."""
    terms = [(want.consumer_id, level, want.limit + 1) for want in wants for level in LEVELS]
    sql = " UNION ALL ".join(
        f"SELECT * FROM (SELECT id, consumer_id, priority, due_at FROM {TABLE} "
        f"WHERE consumer_id = {consumer_id:d} AND priority = {level:d} AND due_at <= %s "
        f"ORDER BY due_at, id LIMIT {limit:d}) AS t{place}"
        for place, (consumer_id, level, limit) in enumerate(terms)
    )
    return sql, [raw.text(now)] * len(terms)


def _claim_group(
    wants: Sequence[Want], now: datetime, owner: int, slot: int, ahead: timedelta
) -> Claim:
    chosen, drained = _choose(wants, now + ahead)
    if not chosen:
        return Claim([], drained=drained)
    leases = {want.consumer_id: want.lease_ms for want in wants}
    part = transactions.run(
        lambda: _take(chosen, leases, now, owner, slot, ahead), on_collision=new_id.reseed
    )
    failpoints.reach("after_claim")
    return replace(part, drained=drained)


def _choose(wants: Sequence[Want], now: datetime) -> tuple[list[int], frozenset[int]]:
    """Ids to lock: the highest levels first, or the oldest where the guard says so."""
    found: dict[int, list[tuple[int, Any, int]]] = {want.consumer_id: [] for want in wants}
    for delivery_id, consumer_id, priority, due_at in raw.read(*candidates_sql(wants, now)):
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


class _Due(NamedTuple):
    """A row that is due and locked."""

    id: int
    message_id: int
    consumer_id: int
    state: str
    attempt_count: int
    failure_count: int
    interruption_count: int
    priority: int
    due_at: str
    accepted_at: str
    expires_at: str | None
    event_type: str
    ordering_key: str
    replay_id: int | None


_INSTANTS = {"due_at", "accepted_at", "expires_at"}
_COLUMNS = ", ".join(
    f"CAST({name} AS CHAR)" if name in _INSTANTS else name for name in _Due._fields
)


def _take(
    chosen: list[int],
    leases: dict[int, int],
    now: datetime,
    owner: int,
    slot: int,
    ahead: timedelta,
) -> Claim:
    instant = raw.text(now)
    found = raw.read(
        f"SELECT {_COLUMNS} FROM {TABLE} "
        f"WHERE id IN ({raw.listed(chosen)}) AND due_at <= %s{raw.skip_locked()}",
        [raw.text(now + ahead)],
    )
    place = {delivery_id: place for place, delivery_id in enumerate(chosen)}
    rows = sorted(map(_Due._make, found), key=lambda row: place[row.id])
    if ahead:
        waiting = DeliveryState.QUEUED.value
        rows = [row for row in rows if row.state == waiting or row.due_at <= instant]
    tally: Tally[tuple[int, str]] = Tally()
    lapsed = [row for row in rows if row.state == DeliveryState.IN_FLIGHT]
    _record_lapsed(lapsed, instant)
    if unheard := [row for row in rows if row.state == DeliveryState.AWAITING_ACK]:
        rows = [row for row in rows if row.state != DeliveryState.AWAITING_ACK]
        _go_on(unheard, now, tally)
    expired = [row for row in rows if row.expires_at and row.expires_at <= instant]
    _finish(expired, DeliveryState.CANCELLED, Reason.EXPIRED, Outcome.EXPIRED, instant, tally)
    worn = [row for row in rows if row.interruption_count >= FREE_ATTEMPTS and row not in expired]
    _finish(worn, DeliveryState.DEAD, Reason.EXHAUSTED, Outcome.INTERRUPTED, instant, tally)
    if expired or worn:
        finished = {row.id for row in (*expired, *worn)}
        rows = [row for row in rows if row.id not in finished]
        _leave((*expired, *worn), {row.id for row in worn}, now)
    by_lease: dict[int, list[_Due]] = {}
    for row in rows:
        by_lease.setdefault(leases[row.consumer_id], []).append(row)
    ends = {lease_ms: now + timedelta(milliseconds=lease_ms) for lease_ms in by_lease}
    for lease_ms, some in by_lease.items():
        _lease(some, ends[lease_ms], owner)
    for (consumer_id, state), count in Tally((row.consumer_id, row.state) for row in rows).items():
        tally[consumer_id, state] -= count
        tally[consumer_id, DeliveryState.IN_FLIGHT.value] += count
    Counter.add(tally, slot)
    failpoints.reach("in_claim")
    claimed = [_claimed(row, ends[leases[row.consumer_id]]) for row in rows]
    return Claim(claimed, len(expired), len(lapsed))


def _lease(rows: list[_Due], until: datetime, owner: int) -> None:
    raw.execute(
        f"UPDATE {TABLE} SET state = %s, reason = %s, attempt_count = attempt_count + 1, "
        "due_at = %s, lease_owner = %s, version = version + 1 "
        f"WHERE id IN ({raw.listed(row.id for row in rows)})",
        [DeliveryState.IN_FLIGHT.value, Reason.CLAIMED.value, raw.text(until), owner],
    )


def _finish(
    rows: list[_Due],
    state: DeliveryState,
    reason: Reason,
    outcome: Outcome,
    now: str,
    tally: Tally[tuple[int, str]],
) -> None:
    """End rows that are not to be sent (any more)."""
    if not rows:
        return
    for row in rows:
        tally[row.consumer_id, row.state] -= 1
        tally[row.consumer_id, state.value] += 1
    raw.execute(
        f"UPDATE {TABLE} SET state = %s, reason = %s, outcome = %s, due_at = NULL, "
        "lease_owner = NULL, finished_at = %s, version = version + 1 "
        f"WHERE id IN ({raw.listed(row.id for row in rows)})",
        [state.value, reason.value, outcome.value, now],
    )


def _go_on(unheard: list[_Due], now: datetime, tally: Tally[tuple[int, str]]) -> None:
    """What was received and not acknowledged in time goes where its consumer wants it."""
    moves = {move.delivery_id: move for move in acks.timed_out(unheard)}
    acks.move(list(moves.values()), now)
    for row in unheard:
        tally[row.consumer_id, row.state] -= 1
        tally[row.consumer_id, moves[row.id].transition.state.value] += 1
    over = [row for row in unheard if moves[row.id].transition.state in FINISHED]
    dead = {row.id for row in over if moves[row.id].transition.state is DeliveryState.DEAD}
    _leave(over, dead, now)


def _leave(rows: Sequence[_Due], dead: set[int], now: datetime) -> None:
    """What ended is in nobody's way any more: who asks next finds the one behind it."""
    ordered = directory.ordered()
    lanes.leave(
        (
            Leaver(row.id, row.consumer_id, row.ordering_key, is_dead=row.id in dead)
            for row in rows
            if row.ordering_key and row.consumer_id in ordered
        ),
        now,
    )


def _record_lapsed(lapsed: list[_Due], now: str) -> None:
    """The attempt that nobody closed becomes history; its holder can no longer close it."""
    if not lapsed:
        return
    raw.execute(
        f"UPDATE {TABLE} SET interruption_count = interruption_count + 1 "
        f"WHERE id IN ({raw.listed(row.id for row in lapsed)})"
    )
    error = "The worker vanished before it could record an answer."
    LAPSED.write(((new_id(), row.id, row.attempt_count), (now, error)) for row in lapsed)


def _claimed(row: _Due, lease_until: datetime) -> Claimed:
    return Claimed(
        id=row.id,
        message_id=row.message_id,
        consumer_id=row.consumer_id,
        attempt=row.attempt_count + 1,
        failure_count=row.failure_count,
        interruption_count=row.interruption_count,
        priority=row.priority,
        due_at=raw.instant(row.due_at),
        accepted_at=raw.instant(row.accepted_at),
        event_type=row.event_type,
        ordering_key=row.ordering_key,
        replayed=row.replay_id is not None,
        lease_until=lease_until,
    )


def _groups(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), CONSUMERS_PER_QUERY):
        yield items[start : start + CONSUMERS_PER_QUERY]
