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
from delivery import transitions
from delivery.acks import decisions
from delivery.core import lifecycle
from delivery.core.lifecycle import (
    FREE_ATTEMPTS,
    ClaimedDelivery,
    DeliveryState,
    Reason,
    Transition,
)
from delivery.core.ordering import BEHIND, key_number
from delivery.core.outcome import Outcome
from delivery.core.recipients import ALONE, LEVELS, ConsumerShare, Row, by_age, share_out
from delivery.models import Attempt, Delivery
from delivery.ordering import key_queue
from delivery.transitions import Move

T = TypeVar("T")
TABLE = Delivery._meta.db_table
IMMEDIATELY = timedelta(0)
CONSUMERS_PER_QUERY = 40
"""SQLite allows 500 terms of a union; 10 levels each."""
_IN_FLIGHT = DeliveryState.IN_FLIGHT
_LAPSED = raw.Insert(
    Attempt,
    numbers=("id", "delivery_id", "number"),
    values=("started_at", "error"),
    same={"outcome": Outcome.LEASE_EXPIRED.value},
)
_CLAIM = Transition(_IN_FLIGHT, Reason.CLAIMED, due_in=0.0, charged=False, is_free=True)
_CLAIM_AGAIN = Transition(_IN_FLIGHT, Reason.CLAIMED, due_in=0.0, charged=False)
"""After a lease that expired, which counts as an interruption, or as a failure below."""
_CLAIM_CHARGED = Transition(_IN_FLIGHT, Reason.CLAIMED, due_in=0.0, charged=True)
_EXPIRE = Transition(DeliveryState.CANCELLED, Reason.EXPIRED, due_in=None, charged=False)
_GIVE_UP = Transition(DeliveryState.DEAD, Reason.EXHAUSTED, due_in=None, charged=False)
_WAIT = Transition(DeliveryState.QUEUED, Reason.LEASE_EXPIRED, due_in=0.0, charged=False)
"""A retry of a paused ordering key."""
_INSTANTS = {"due_at", "accepted_at", "expires_at"}


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
    share: ConsumerShare = ALONE
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
    still_due: dict[int, dict[int, datetime]] = field(default_factory=dict)
    """When the earliest row that was not chosen is due, by consumer and priority."""


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
    still_due: dict[int, dict[int, datetime]] = field(default_factory=dict)
    """For the other consumers: when the earliest row of each priority that was not chosen is
    due."""


class ClaimContext(NamedTuple):
    """Who claims, and when."""

    requests: Sequence[ClaimRequest]
    now: datetime
    slot: int
    ahead: timedelta
    owner: int | None = None
    """If set, rows that this owner holds are claimed again before their leases expire."""


class _OfConsumer(Protocol):
    @property
    def consumer_id(self) -> int: ...


R = TypeVar("R", bound=_OfConsumer)


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


_COLUMNS = ", ".join(
    f"CAST({name} AS CHAR)" if name in _INSTANTS else name for name in _DueRow._fields
)


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
        still_due={key: due for part in parts for key, due in part.still_due.items()},
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
    return _claim_candidates(
        candidates,
        ClaimContext([request], now, slot, IMMEDIATELY, request.owner if reclaim else None),
    )


def shared(rows: Iterable[R], requests: Sequence[ClaimRequest]) -> list[list[R]]:
    """Distribute rows over the requests: each gets up to its limit, earlier requests first."""
    by_consumer: dict[int, deque[R]] = {}
    for row in rows:
        by_consumer.setdefault(row.consumer_id, deque()).append(row)
    nothing: deque[R] = deque()
    shares = []
    for request in requests:
        available = by_consumer.get(request.consumer_id, nothing)
        shares.append([available.popleft() for _ in range(min(request.limit, len(available)))])
    return shares


def choose(requests: Sequence[ClaimRequest], now: datetime, most: int | None = None) -> Candidates:
    """Choose due rows by priority, or by age where the starvation guard asks for it.

    Expects one request per consumer. ``most`` limits the total over all of them
    (`core.recipients`).
    """
    eligible: dict[int, list[Row]] = {request.consumer_id: [] for request in requests}
    for delivery_id, consumer_id, priority, due_at in raw.read(*candidates_sql(requests, now)):
        eligible[consumer_id].append((-priority, due_at, delivery_id))
    due = dict(eligible)
    for request in requests:
        if request.avoided and len(due[request.consumer_id]) > 1:
            eligible[request.consumer_id] = [
                row for row in due[request.consumer_id] if row[2] != request.avoided
            ]
        if not request.share.is_all:
            eligible[request.consumer_id] = list(_preferred(request, eligible[request.consumer_id]))
        eligible[request.consumer_id].sort(key=by_age if request.oldest_first else None)
    if most is None:
        chosen = {
            request.consumer_id: eligible[request.consumer_id][: request.limit]
            for request in requests
        }
    else:
        chosen = share_out(
            eligible,
            {request.consumer_id: request.limit for request in requests},
            {request.consumer_id for request in requests if request.may_take_more},
            most,
            oldest_first=any(request.oldest_first for request in requests),
        )
    first: dict[int, list[int]] = {}
    spare: dict[int, list[int]] = {}
    still_due: dict[int, dict[int, datetime]] = {}
    for request in requests:
        taken, rows = chosen[request.consumer_id], eligible[request.consumer_id]
        if taken:
            first[request.consumer_id] = [row[2] for row in taken]
            spare[request.consumer_id] = [row[2] for row in rows[request.limit :][: request.spare]]
        if len(taken) < len(due[request.consumer_id]):
            still_due[request.consumer_id] = _earliest(
                set(due[request.consumer_id]).difference(taken)
            )
    return Candidates(first, spare, frozenset(eligible.keys() - still_due.keys()), still_due)


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


def _merged(requests: Sequence[ClaimRequest]) -> Sequence[ClaimRequest]:
    """Combine requests so that each consumer has one."""
    by_consumer: dict[int, ClaimRequest] = {}
    for request in requests:
        earlier = by_consumer.get(request.consumer_id)
        by_consumer[request.consumer_id] = (
            replace(
                request,
                limit=earlier.limit + request.limit,
                spare=earlier.spare + request.spare,
                oldest_first=earlier.oldest_first or request.oldest_first,
                levels=LEVELS,
            )
            if earlier
            else request
        )
    return list(by_consumer.values())


def _groups(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), CONSUMERS_PER_QUERY):
        yield items[start : start + CONSUMERS_PER_QUERY]


def _claim_group(
    requests: Sequence[ClaimRequest], context: ClaimContext, most: int | None
) -> Claim:
    candidates = choose(requests, context.now + context.ahead, most)
    taken = _claim_candidates(candidates, context) if candidates.first else Claim([])
    return replace(taken, drained=candidates.drained, still_due=candidates.still_due)


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


def _claim_candidates(candidates: Candidates, context: ClaimContext) -> Claim:
    claimed = transactions.run(lambda: _write(candidates, context), on_collision=reseed_ids)
    failpoints.reach("after_claim")
    return claimed


def _write(candidates: Candidates, context: ClaimContext) -> Claim:
    """Lease the candidates that no other worker holds, and move those that are not to be sent."""
    now, instant = context.now, raw.text(context.now)
    rows = _locked(candidates, now + context.ahead, context.owner)
    if context.ahead:
        waiting = DeliveryState.QUEUED.value
        rows = [row for row in rows if row.state == waiting or row.due_at <= instant]
    lapsed = [row for row in rows if row.state == DeliveryState.IN_FLIGHT]
    moves = decisions.decided(lapsed)
    moves += decisions.timed_out(row for row in rows if row.state == DeliveryState.AWAITING_ACK)
    decided = {move.row.id for move in moves}
    rows = [row for row in rows if row.id not in decided]
    is_last_lease = _charged(row for row in lapsed if row.id not in decided)
    expired = [row for row in rows if row.expires_at and row.expires_at <= instant]
    if expired:
        heads = ((row.consumer_id, row.ordering_key) for row in expired)
        expired += map(_DueRow._make, key_queue.expired_behind(heads, _COLUMNS, instant))
        moves += [Move(row, _EXPIRE, outcome=Outcome.EXPIRED) for row in expired]
    leasable: list[_DueRow] = []
    for row in rows:
        if row.expires_at and row.expires_at <= instant:
            continue
        if row.interruption_count >= FREE_ATTEMPTS:
            moves.append(Move(row, _GIVE_UP, outcome=Outcome.INTERRUPTED))
        elif is_last_lease.get(row.id):
            moves.append(Move(row, lifecycle.EXHAUST, outcome=Outcome.LEASE_EXPIRED))
        else:
            leasable.append(row)
    held = _step_back(leasable, now)
    moves += [
        Move(
            row,
            replace(_WAIT, charged=row.id in is_last_lease),
            due_at=BEHIND,
            outcome=Outcome.LEASE_EXPIRED,
        )
        for row in leasable
        if row.id in held and row.state == DeliveryState.IN_FLIGHT
    ]
    leases = _leases([row for row in leasable if row.id not in held], is_last_lease, context)
    error = "The worker died before it recorded a response."
    attempts = _LAPSED.statements(
        ((new_id(), row.id, row.attempt_count), (instant, error)) for row in lapsed
    )
    failpoints.reach("in_claim")
    if moves or leases:
        transitions.apply(
            [*moves, *leases], now=now, slot=context.slot, beside=attempts, is_last=True
        )
    return Claim(
        [_claimed(lease) for lease in leases],
        len(expired),
        sum(row.due_at <= instant for row in lapsed),
    )


def _locked(candidates: Candidates, now: datetime, owner: int | None) -> list[_DueRow]:
    """Lock the first candidates, and a spare one for each that another worker holds."""
    rows = _lock(candidates.first, now, owner)
    locked_counts = Tally(row.consumer_id for row in rows)
    instead = {
        consumer_id: spare[: len(candidates.first[consumer_id]) - locked_counts[consumer_id]]
        for consumer_id, spare in candidates.spare.items()
    }
    return rows + _lock(instead, now, owner) if any(instead.values()) else rows


def _lock(chosen: Mapping[int, Sequence[int]], now: datetime, owner: int | None) -> list[_DueRow]:
    whose = {key: consumer_id for consumer_id, ids in chosen.items() for key in ids}
    free = "due_at <= %s" if owner is None else f"(due_at <= %s OR lease_owner = {owner:d})"
    locked_rows = raw.read(
        f"SELECT {_COLUMNS} FROM {TABLE} "
        f"WHERE id IN ({raw.listed(whose)}) AND {free}{dialect.skip_locked}",
        [raw.text(now)],
    )
    place = {delivery_id: place for place, delivery_id in enumerate(whose)}
    # A queue's delivery may have moved to another consumer since it was chosen (queue/reassign).
    rows = [row for row in map(_DueRow._make, locked_rows) if row.consumer_id == whose[row.id]]
    return sorted(rows, key=lambda row: place[row.id])


def _charged(lapsed: Iterable[_DueRow]) -> dict[int, bool]:
    """Return rows whose expired leases count as failures, each with whether it was the last one."""
    consumers = config_cache.consumers()
    return {
        row.id: lifecycle.is_last_lease(row.failure_count, rule=consumer.retry_for(row.event_type))
        for row in lapsed
        if (consumer := consumers.get(row.consumer_id)) and consumer.charges_leases
    }


def _step_back(rows: Sequence[_DueRow], now: datetime) -> set[int]:
    """Put retries of paused ordering keys back to wait, and return those.

    Rows that were never attempted need no check: they already wait behind their key's head.
    """
    retries = [row for row in rows if row.ordering_key and (row.attempt_count or row.replay_id)]
    if not retries:
        return set()
    held = key_queue.paused((row.consumer_id, row.ordering_key) for row in retries)
    heads = {
        row.id: key_number(row.consumer_id, row.ordering_key)
        for row in retries
        if (row.consumer_id, row.ordering_key) in held
    }
    return key_queue.step_back(heads, now) if heads else set()


def _leases(
    rows: Sequence[_DueRow], is_last_lease: Mapping[int, bool], context: ClaimContext
) -> list[Move]:
    """Return the leases in the order of the rows; each goes to the request that has room."""
    leases: dict[int, Move] = {}
    for request, its_rows in zip(context.requests, shared(rows, context.requests), strict=True):
        until = context.now + timedelta(milliseconds=request.lease_ms)
        for row in its_rows:
            if row.state != DeliveryState.IN_FLIGHT:
                to = _CLAIM
            else:
                to = _CLAIM_CHARGED if row.id in is_last_lease else _CLAIM_AGAIN
            leases[row.id] = Move(row, to, until, owner=request.owner)
    return [leases[row.id] for row in rows]


def _claimed(lease: Move) -> ClaimedDelivery:
    row, to = lease.row, lease.to
    assert isinstance(row, _DueRow)
    assert lease.due_at is not None
    return ClaimedDelivery(
        id=row.id,
        message_id=row.message_id,
        consumer_id=row.consumer_id,
        attempt=row.attempt_count + 1,
        failure_count=row.failure_count + (to is _CLAIM_CHARGED),
        interruption_count=row.interruption_count + (to is _CLAIM_AGAIN),
        priority=row.priority,
        due_at=raw.instant(row.due_at),
        accepted_at=raw.instant(row.accepted_at),
        event_type=row.event_type,
        ordering_key=row.ordering_key,
        replayed=row.replay_id is not None,
        lease_until=lease.due_at,
    )
