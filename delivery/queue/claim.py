"""Lease due deliveries of chosen consumers in index order (S0-34, S0-40).

One short range per consumer and priority level finds candidates without locks. Only those rows are
then locked, by primary key. The caller requests only consumers that may be called now, so the
backlog of a paused or failing consumer costs the others nothing.
"""

from collections import Counter as Tally
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypeVar

from channels_app import failpoints
from channels_app.database import raw, transactions
from channels_app.database.raw import dialect
from channels_app.models import new_id, reseed_ids
from channels_app.registry.cache import config_cache
from delivery import dead_letters
from delivery.acks import callbacks
from delivery.core import lifecycle
from delivery.core.lifecycle import FINISHED, FREE_ATTEMPTS, ClaimedDelivery, DeliveryState, Reason
from delivery.core.ordering import key_number
from delivery.core.outcome import Outcome
from delivery.core.recipients import ALONE, LEVELS, Row, Share, by_age, share_out
from delivery.models import Attempt, Counter, Delivery
from delivery.ordering import key_queue
from delivery.ordering.key_queue import ClosingEntry

TABLE = Delivery._meta.db_table


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """How many deliveries of one consumer to claim, and for whom."""

    consumer_id: int
    limit: int
    lease_ms: int
    owner: int
    """The lease owner: the generation of a pump, or a pull worker."""
    oldest_first: bool = False
    """Ignore priority in this claim: the guard against starvation (S0-42)."""
    spare: int = 0
    """Additional candidates, used when another worker holds some of the first ones."""
    levels: Sequence[int] = LEVELS
    """Priorities to read, where the caller knows which levels have due rows."""
    may_take_more: bool = False
    """Whether ``limit`` is only a share and the consumer could take more."""
    share: Share = ALONE
    """Which rows this owner claims first, where several pumps serve the consumer. This is a
    preference and not a lock: with nothing better due, a pump also claims the other pumps' rows and
    so helps a slow one."""
    avoided: int = 0
    """A delivery to claim only if no other one is due; 0: none."""

    @property
    def rows_per_level(self) -> int:
        """Rows to read per priority: enough for all owners of the consumer, and one more."""
        return (self.limit + self.spare) * len(self.share.owners) + 1


@dataclass(frozen=True, slots=True)
class Candidates:
    """Ids of due rows by consumer, in the order in which to claim them."""

    first: dict[int, list[int]]
    spare: dict[int, list[int]]
    drained: frozenset[int]
    """Consumers that have no more due rows than were asked for."""
    left: dict[int, dict[int, datetime]] = field(default_factory=dict)
    """When the earliest row that was not chosen is due, by consumer and priority."""


def candidates_sql(requests: Sequence[ClaimRequest], now: datetime) -> tuple[str, list[Any]]:
    """Return the query for due rows: one range per consumer and level, each in index order."""
    terms = [
        (request.consumer_id, level, request.rows_per_level)
        for request in requests
        for level in request.levels
    ]
    sql = dialect.union(
        f"SELECT id, consumer_id, priority, due_at FROM {TABLE} "
        f"WHERE consumer_id = {consumer_id:d} AND priority = {level:d} AND due_at <= %s "
        f"ORDER BY due_at, id LIMIT {limit:d}"
        for consumer_id, level, limit in terms
    )
    return sql, [raw.text(now)] * len(terms)


def choose(requests: Sequence[ClaimRequest], now: datetime, most: int | None = None) -> Candidates:
    """Choose due rows by priority, or by age where the starvation guard asks for it.

    Expects one request per consumer. ``most`` limits the total over all of them
    (`core.recipients`).
    """
    found: dict[int, list[Row]] = {request.consumer_id: [] for request in requests}
    for delivery_id, consumer_id, priority, due_at in raw.read(*candidates_sql(requests, now)):
        found[consumer_id].append((-priority, due_at, delivery_id))
    due = dict(found)
    for request in requests:
        if request.avoided and len(due[request.consumer_id]) > 1:
            found[request.consumer_id] = [
                row for row in due[request.consumer_id] if row[2] != request.avoided
            ]
        if not request.share.is_all:
            found[request.consumer_id] = list(_preferred(request, found[request.consumer_id]))
        found[request.consumer_id].sort(key=by_age if request.oldest_first else None)
    if most is None:
        chosen = {
            request.consumer_id: found[request.consumer_id][: request.limit] for request in requests
        }
    else:
        chosen = share_out(
            found,
            {request.consumer_id: request.limit for request in requests},
            {request.consumer_id for request in requests if request.may_take_more},
            most,
            oldest_first=any(request.oldest_first for request in requests),
        )
    first: dict[int, list[int]] = {}
    spare: dict[int, list[int]] = {}
    left: dict[int, dict[int, datetime]] = {}
    for request in requests:
        mine, rows = chosen[request.consumer_id], found[request.consumer_id]
        if mine:
            first[request.consumer_id] = [row[2] for row in mine]
            spare[request.consumer_id] = [row[2] for row in rows[request.limit :][: request.spare]]
        if len(mine) < len(due[request.consumer_id]):
            left[request.consumer_id] = _earliest(set(due[request.consumer_id]).difference(mine))
    return Candidates(first, spare, frozenset(found.keys() - left.keys()), left)


def _preferred(request: ClaimRequest, rows: Sequence[Row]) -> Iterator[Row]:
    """Up to the limit of each priority: this owner's rows first, then those of other owners."""
    by_level: dict[int, list[Row]] = {}
    for row in rows:
        by_level.setdefault(row[0], []).append(row)
    for level in by_level.values():
        level.sort(key=lambda row: (not request.share.prefers(row[2]), row))
        yield from level[: request.limit + request.spare + 1]


def _earliest(rows: set[Row]) -> dict[int, datetime]:
    earliest: dict[int, Any] = {}
    for priority, due_at, _ in rows:
        if -priority not in earliest or due_at < earliest[-priority]:
            earliest[-priority] = due_at
    return {priority: dialect.instant(due_at) for priority, due_at in earliest.items()}


LAPSED = raw.Insert(
    Attempt,
    numbers=("id", "delivery_id", "number"),
    values=("started_at", "error"),
    same={"outcome": Outcome.LEASE_EXPIRED.value},
)


class ClaimContext(NamedTuple):
    """Who claims, and when."""

    requests: Sequence[ClaimRequest]
    now: datetime
    slot: int
    ahead: timedelta
    owner: int | None = None
    """If set, rows that this owner holds are claimed again before their leases expire."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The rows that one call claimed, and what else it found."""

    rows: list[ClaimedDelivery]
    expired_count: int = 0
    """Rows past their expiry: cancelled instead of sent."""
    rescued_count: int = 0
    """Rows whose former lease had expired."""
    drained: frozenset[int] = frozenset()
    """Consumers that have no more due rows than were asked for."""
    left: dict[int, dict[int, datetime]] = field(default_factory=dict)
    """For the other consumers: when the earliest row of each priority that was not chosen is
    due."""


class _OfConsumer(Protocol):
    @property
    def consumer_id(self) -> int: ...


R = TypeVar("R", bound=_OfConsumer)


def shared(rows: Iterable[R], requests: Sequence[ClaimRequest]) -> list[list[R]]:
    """Distribute rows over the requests: each gets up to its limit, earlier requests first."""
    left: dict[int, deque[R]] = {}
    for row in rows:
        left.setdefault(row.consumer_id, deque()).append(row)
    nothing: deque[R] = deque()
    shares = []
    for request in requests:
        mine = left.get(request.consumer_id, nothing)
        shares.append([mine.popleft() for _ in range(min(request.limit, len(mine)))])
    return shares


class _DueRow(NamedTuple):
    """A due row that this transaction has locked."""

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
    f"CAST({name} AS CHAR)" if name in _INSTANTS else name for name in _DueRow._fields
)


def take(candidates: Candidates, context: ClaimContext) -> Claim:
    """Lease the chosen rows that no other worker holds. Must be the transaction's last step."""
    now, instant = context.now, raw.text(context.now)
    rows = _locked(candidates, now + context.ahead, context.owner)
    if context.ahead:
        waiting = DeliveryState.QUEUED.value
        rows = [row for row in rows if row.state == waiting or row.due_at <= instant]
    tally: Tally[tuple[int, str]] = Tally()
    lapsed = [row for row in rows if row.state == DeliveryState.IN_FLIGHT]
    acknowledged = callbacks.decided(lapsed)
    charged = _record_lapsed(lapsed, {move.delivery_id for move in acknowledged}, instant)
    unacknowledged = [row for row in rows if row.state == DeliveryState.AWAITING_ACK]
    if decided := acknowledged + callbacks.timed_out(unacknowledged):
        rows = _apply_decided(rows, decided, now, tally)
    if expired := [row for row in rows if row.expires_at and row.expires_at <= instant]:
        heads = ((row.consumer_id, row.ordering_key) for row in expired)
        expired += map(_DueRow._make, key_queue.expired_behind(heads, _COLUMNS, instant))
    _finish(expired, DeliveryState.CANCELLED, Reason.EXPIRED, Outcome.EXPIRED, instant, tally)
    interrupted = [
        row for row in rows if row.interruption_count >= FREE_ATTEMPTS and row not in expired
    ]
    _finish(interrupted, DeliveryState.DEAD, Reason.EXHAUSTED, Outcome.INTERRUPTED, instant, tally)
    out_of_attempts = [
        row for row in rows if charged.get(row.id) and row not in (*expired, *interrupted)
    ]
    _finish(
        out_of_attempts, DeliveryState.DEAD, Reason.EXHAUSTED, Outcome.LEASE_EXPIRED, instant, tally
    )
    if expired or interrupted or out_of_attempts:
        dead = {row.id for row in (*interrupted, *out_of_attempts)}
        finished = dead | {row.id for row in expired}
        rows = [row for row in rows if row.id not in finished]
        _leave((*expired, *interrupted, *out_of_attempts), dead, now)
        dead_letters.note(
            ((row.id, row.consumer_id) for row in (*interrupted, *out_of_attempts)), now
        )
    rows = _without_held([_counted(row, charged) for row in rows], now, tally)
    claimed = _lease(rows, context, tally)
    rescued_count = sum(row.due_at <= instant for row in lapsed)
    return Claim(claimed, len(expired), rescued_count)


def _locked(candidates: Candidates, now: datetime, owner: int | None) -> list[_DueRow]:
    """Lock the first candidates, and a spare one for each that another worker holds."""
    rows = _lock(candidates.first, now, owner)
    got = Tally(row.consumer_id for row in rows)
    instead = {
        consumer_id: spare[: len(candidates.first[consumer_id]) - got[consumer_id]]
        for consumer_id, spare in candidates.spare.items()
    }
    return rows + _lock(instead, now, owner) if any(instead.values()) else rows


def _lock(chosen: Mapping[int, Sequence[int]], now: datetime, owner: int | None) -> list[_DueRow]:
    whose = {key: consumer_id for consumer_id, some in chosen.items() for key in some}
    free = "due_at <= %s" if owner is None else f"(due_at <= %s OR lease_owner = {owner:d})"
    found = raw.read(
        f"SELECT {_COLUMNS} FROM {TABLE} "
        f"WHERE id IN ({raw.listed(whose)}) AND {free}{dialect.skip_locked}",
        [raw.text(now)],
    )
    place = {delivery_id: place for place, delivery_id in enumerate(whose)}
    # A queue's delivery may have moved to another consumer since it was chosen (queue/reassign).
    rows = [row for row in map(_DueRow._make, found) if row.consumer_id == whose[row.id]]
    return sorted(rows, key=lambda row: place[row.id])


def _lease(
    rows: list[_DueRow], context: ClaimContext, tally: Tally[tuple[int, str]]
) -> list[ClaimedDelivery]:
    """Lease the rows, one UPDATE per owner and lease time, and update the counters."""
    by_holder: dict[tuple[int, int], list[_DueRow]] = {}
    for request, mine in zip(context.requests, shared(rows, context.requests), strict=True):
        by_holder.setdefault((request.owner, request.lease_ms), []).extend(mine)
    claimed: dict[int, ClaimedDelivery] = {}
    statements = []
    for (owner, lease_ms), some in by_holder.items():
        until = context.now + timedelta(milliseconds=lease_ms)
        claimed |= {row.id: _claimed(row, until) for row in some}
        if some:
            statements.append(_leasing(some, until, owner))
    for (consumer_id, state), count in Tally((row.consumer_id, row.state) for row in rows).items():
        tally[consumer_id, state] -= count
        tally[consumer_id, DeliveryState.IN_FLIGHT.value] += count
    statements += Counter.adding(tally, context.slot)
    failpoints.reach("in_claim")
    if statements:
        raw.execute_last(statements)
    return [claimed[row.id] for row in rows]


def _leasing(rows: list[_DueRow], until: datetime, owner: int) -> raw.Statement:
    return (
        f"UPDATE {TABLE} SET state = %s, reason = %s, attempt_count = attempt_count + 1, "
        "due_at = %s, lease_owner = %s, version = version + 1 "
        f"WHERE id IN ({raw.listed(row.id for row in rows)})",
        [DeliveryState.IN_FLIGHT.value, Reason.CLAIMED.value, raw.text(until), owner],
    )


def _finish(
    rows: list[_DueRow],
    state: DeliveryState,
    reason: Reason,
    outcome: Outcome,
    now: str,
    tally: Tally[tuple[int, str]],
) -> None:
    """Move rows that are not to be sent to a final state."""
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


def _apply_decided(
    rows: list[_DueRow], decided: list[callbacks.Move], now: datetime, tally: Tally[tuple[int, str]]
) -> list[_DueRow]:
    """Move rows whose result is already known, and return the other rows."""
    callbacks.move(decided, now)
    to = {move.delivery_id: move.transition.state for move in decided}
    moved = [row for row in rows if row.id in to]
    for row in moved:
        tally[row.consumer_id, row.state] -= 1
        tally[row.consumer_id, to[row.id].value] += 1
    over = [row for row in moved if to[row.id] in FINISHED]
    dead = [row for row in over if to[row.id] is DeliveryState.DEAD]
    _leave(over, {row.id for row in dead}, now)
    dead_letters.note(((row.id, row.consumer_id) for row in dead), now)
    return [row for row in rows if row.id not in to]


def _without_held(
    rows: list[_DueRow], now: datetime, tally: Tally[tuple[int, str]]
) -> list[_DueRow]:
    """Put retries of paused ordering keys back, and return the rows that may be sent.

    Rows that were never attempted need no check: they already wait behind their key's head.
    """
    retries = [row for row in rows if row.ordering_key and (row.attempt_count or row.replay_id)]
    if not retries:
        return rows
    held = key_queue.paused((row.consumer_id, row.ordering_key) for row in retries)
    heads = {
        row.id: key_number(row.consumer_id, row.ordering_key)
        for row in retries
        if (row.consumer_id, row.ordering_key) in held
    }
    if not heads:
        return rows
    back = key_queue.step_back(heads, now)
    lapsed = [row for row in rows if row.id in back and row.state == DeliveryState.IN_FLIGHT]
    if lapsed:
        raw.execute(
            f"UPDATE {TABLE} SET state = %s, reason = %s, outcome = %s, lease_owner = NULL "
            f"WHERE id IN ({raw.listed(row.id for row in lapsed)})",
            [DeliveryState.QUEUED.value, Reason.LEASE_EXPIRED.value, Outcome.LEASE_EXPIRED.value],
        )
        for row in lapsed:
            tally[row.consumer_id, DeliveryState.IN_FLIGHT.value] -= 1
            tally[row.consumer_id, DeliveryState.QUEUED.value] += 1
    return [row for row in rows if row.id not in back]


def _leave(rows: Sequence[_DueRow], dead: set[int], now: datetime) -> None:
    """Remove finished rows from their ordering keys, where the next entries become heads."""
    ordered = config_cache.ordered()
    key_queue.leave(
        (
            ClosingEntry(row.id, row.consumer_id, row.ordering_key, is_dead=row.id in dead)
            for row in rows
            if row.ordering_key and row.consumer_id in ordered
        ),
        now,
    )


def _record_lapsed(lapsed: list[_DueRow], acknowledged: set[int], now: str) -> dict[int, bool]:
    """Record the expired attempts, after which their former holders can no longer close them.

    ``acknowledged`` are deliveries whose consumers have acknowledged or refused them: these count
    as neither failure nor interruption. Returns the other deliveries that count as a failure of the
    consumer, and for each whether that was its last attempt.
    """
    if not lapsed:
        return {}
    unacknowledged = [row for row in lapsed if row.id not in acknowledged]
    views = config_cache.consumers()
    charged = {
        row.id: lifecycle.is_last_lease(row.failure_count, rule=view.retry_for(row.event_type))
        for row in unacknowledged
        if (view := views.get(row.consumer_id)) and view.charges_leases
    }
    free = [row.id for row in unacknowledged if row.id not in charged]
    for counted, ids in (("failure_count", list(charged)), ("interruption_count", free)):
        if ids:
            raw.execute(
                f"UPDATE {TABLE} SET {counted} = {counted} + 1 WHERE id IN ({raw.listed(ids)})"
            )
    error = "The worker died before it recorded a response."
    LAPSED.write(((new_id(), row.id, row.attempt_count), (now, error)) for row in lapsed)
    return charged


def _counted(row: _DueRow, charged: Mapping[int, bool]) -> _DueRow:
    """Return the row with the counts that `_record_lapsed` has written."""
    if row.state != DeliveryState.IN_FLIGHT:
        return row
    if row.id in charged:
        return row._replace(failure_count=row.failure_count + 1)
    return row._replace(interruption_count=row.interruption_count + 1)


def _claimed(row: _DueRow, lease_until: datetime) -> ClaimedDelivery:
    return ClaimedDelivery(
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


T = TypeVar("T")

IMMEDIATELY = timedelta(0)
CONSUMERS_PER_QUERY = 40
"""SQLite allows 500 terms of a union; 10 levels each."""


def claim(
    requests: Sequence[ClaimRequest],
    *,
    now: datetime,
    slot: int,
    ahead: timedelta = IMMEDIATELY,
    most: int | None = None,
) -> Claim:
    """Lease due rows: ``in_flight``, ``attempt_count`` + 1, ``due_at`` at the lease's end.

    ``slot`` is the caller's slot of the counters. Rows that another worker holds are skipped
    without waiting. Queued rows due within ``ahead`` are claimed too, for a worker that keeps each
    until its ``ClaimedDelivery.due_at``; no lease ends early because of it. Of several requests for
    one consumer the first is served first; `shared` assigns the rows to the requests.
    ``most`` limits the total for each group of `CONSUMERS_PER_QUERY` consumers; the highest
    priority then goes first across consumers as well (`core.recipients`).
    """
    context = ClaimContext(requests, now, slot, ahead)
    parts = [_claim_group(group, context, most) for group in _groups(_merged(requests))]
    return Claim(
        rows=[row for part in parts for row in part.rows],
        expired_count=sum(part.expired_count for part in parts),
        rescued_count=sum(part.rescued_count for part in parts),
        drained=frozenset[int]().union(*(part.drained for part in parts)),
        left={key: due for part in parts for key, due in part.left.items()},
    )


def claim_chosen(
    chosen: list[int], request: ClaimRequest, *, now: datetime, slot: int, reclaim: bool = False
) -> Claim:
    """Lease rows of one consumer that the caller has chosen among its due ones.

    ``reclaim`` also claims rows that the owner itself holds, as if their leases had expired.
    """
    if not chosen:
        return Claim([])
    candidates = Candidates({request.consumer_id: chosen}, {}, frozenset())
    return _take(
        candidates,
        ClaimContext([request], now, slot, IMMEDIATELY, request.owner if reclaim else None),
    )


def _claim_group(
    requests: Sequence[ClaimRequest], context: ClaimContext, most: int | None
) -> Claim:
    candidates = choose(requests, context.now + context.ahead, most)
    taken = _take(candidates, context) if candidates.first else Claim([])
    return replace(taken, drained=candidates.drained, left=candidates.left)


def _take(candidates: Candidates, context: ClaimContext) -> Claim:
    part = transactions.run(lambda: take(candidates, context), on_collision=reseed_ids)
    failpoints.reach("after_claim")
    return part


def _merged(requests: Sequence[ClaimRequest]) -> Sequence[ClaimRequest]:
    """Combine requests so that each consumer has one."""
    by_consumer: dict[int, ClaimRequest] = {}
    for request in requests:
        known = by_consumer.get(request.consumer_id)
        by_consumer[request.consumer_id] = (
            replace(
                request,
                limit=known.limit + request.limit,
                spare=known.spare + request.spare,
                oldest_first=known.oldest_first or request.oldest_first,
                levels=LEVELS,
            )
            if known
            else request
        )
    return list(by_consumer.values())


def _groups(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), CONSUMERS_PER_QUERY):
        yield items[start : start + CONSUMERS_PER_QUERY]
