"""Taking: lock what was chosen, end what is not to be sent any more, lease the rest."""

from collections import Counter as Tally
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol, TypeVar

from channels_app import failpoints
from channels_app.config_cache import config_cache
from channels_app.models import new_id, raw
from delivery import acks, dead_letters, lanes
from delivery.lanes import ClosingEntry
from delivery.models import Attempt, Counter, Delivery
from delivery.rules import lifecycle
from delivery.rules.claimed import ClaimedDelivery
from delivery.rules.lanes import lane_id
from delivery.rules.lifecycle import FINISHED, FREE_ATTEMPTS, DeliveryState, Reason
from delivery.rules.outcome import Outcome
from delivery.steps.claim.candidates import Candidates, ClaimRequest

TABLE = Delivery._meta.db_table
LAPSED = raw.Insert(
    Attempt,
    numbers=("id", "delivery_id", "number"),
    values=("started_at", "error"),
    same={"outcome": Outcome.LEASE_EXPIRED.value},
)


class ClaimContext(NamedTuple):
    """Who takes, and when."""

    wants: Sequence[ClaimRequest]
    now: datetime
    slot: int
    ahead: timedelta
    owner: int | None = None
    """Whose own leases are taken anew, before they have lapsed."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one call took, and what it found on the way."""

    rows: list[ClaimedDelivery]
    expired_count: int = 0
    """Rows whose last instant had passed: cancelled, not sent."""
    rescued_count: int = 0
    """Rows whose former holder let the lease lapse."""
    drained: frozenset[int] = frozenset()
    """Consumers that had no more due rows than were asked for."""
    left: dict[int, dict[int, datetime]] = field(default_factory=dict)
    """Of the others, when the earliest row of each priority that was not chosen is due."""


class _OfConsumer(Protocol):
    @property
    def consumer_id(self) -> int: ...


R = TypeVar("R", bound=_OfConsumer)


def shared(rows: Iterable[R], wants: Sequence[ClaimRequest]) -> list[list[R]]:
    """What of the rows is each want's: its limit, unless those before it left less."""
    left: dict[int, deque[R]] = {}
    for row in rows:
        left.setdefault(row.consumer_id, deque()).append(row)
    nothing: deque[R] = deque()
    shares = []
    for want in wants:
        mine = left.get(want.consumer_id, nothing)
        shares.append([mine.popleft() for _ in range(min(want.limit, len(mine)))])
    return shares


class _DueRow(NamedTuple):
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
    f"CAST({name} AS CHAR)" if name in _INSTANTS else name for name in _DueRow._fields
)


def take(choice: Candidates, holding: ClaimContext) -> Claim:
    """Lease what nobody else holds of the choice. The last thing in the caller's transaction."""
    now, instant = holding.now, raw.text(holding.now)
    rows = _locked(choice, now + holding.ahead, holding.owner)
    if holding.ahead:
        waiting = DeliveryState.QUEUED.value
        rows = [row for row in rows if row.state == waiting or row.due_at <= instant]
    tally: Tally[tuple[int, str]] = Tally()
    lapsed = [row for row in rows if row.state == DeliveryState.IN_FLIGHT]
    heard = acks.decided(lapsed)
    charged = _record_lapsed(lapsed, {move.delivery_id for move in heard}, instant)
    unheard = [row for row in rows if row.state == DeliveryState.AWAITING_ACK]
    if decided := heard + acks.timed_out(unheard):
        rows = _go_on(rows, decided, now, tally)
    if expired := [row for row in rows if row.expires_at and row.expires_at <= instant]:
        heads = ((row.consumer_id, row.ordering_key) for row in expired)
        expired += map(_DueRow._make, lanes.expired_behind(heads, _COLUMNS, instant))
    _finish(expired, DeliveryState.CANCELLED, Reason.EXPIRED, Outcome.EXPIRED, instant, tally)
    worn = [row for row in rows if row.interruption_count >= FREE_ATTEMPTS and row not in expired]
    _finish(worn, DeliveryState.DEAD, Reason.EXHAUSTED, Outcome.INTERRUPTED, instant, tally)
    spent = [row for row in rows if charged.get(row.id) and row not in (*expired, *worn)]
    _finish(spent, DeliveryState.DEAD, Reason.EXHAUSTED, Outcome.LEASE_EXPIRED, instant, tally)
    if expired or worn or spent:
        dead = {row.id for row in (*worn, *spent)}
        finished = dead | {row.id for row in expired}
        rows = [row for row in rows if row.id not in finished]
        _leave((*expired, *worn, *spent), dead, now)
        dead_letters.note(((row.id, row.consumer_id) for row in (*worn, *spent)), now)
    rows = _without_held([_counted(row, charged) for row in rows], now, tally)
    claimed = _lease(rows, holding, tally)
    rescued_count = sum(row.due_at <= instant for row in lapsed)
    return Claim(claimed, len(expired), rescued_count)


def _locked(choice: Candidates, now: datetime, owner: int | None) -> list[_DueRow]:
    """The first ones, and of the spare ones as many as others hold of those."""
    rows = _lock(choice.first, now, owner)
    got = Tally(row.consumer_id for row in rows)
    instead = {
        consumer_id: spare[: len(choice.first[consumer_id]) - got[consumer_id]]
        for consumer_id, spare in choice.spare.items()
    }
    return rows + _lock(instead, now, owner) if any(instead.values()) else rows


def _lock(chosen: Mapping[int, Sequence[int]], now: datetime, owner: int | None) -> list[_DueRow]:
    whose = {key: consumer_id for consumer_id, some in chosen.items() for key in some}
    free = "due_at <= %s" if owner is None else f"(due_at <= %s OR lease_owner = {owner:d})"
    found = raw.read(
        f"SELECT {_COLUMNS} FROM {TABLE} "
        f"WHERE id IN ({raw.listed(whose)}) AND {free}{raw.skip_locked()}",
        [raw.text(now)],
    )
    place = {delivery_id: place for place, delivery_id in enumerate(whose)}
    # Of a queue one may have gone to another consumer since it was chosen (steps/reassign).
    rows = [row for row in map(_DueRow._make, found) if row.consumer_id == whose[row.id]]
    return sorted(rows, key=lambda row: place[row.id])


def _lease(
    rows: list[_DueRow], holding: ClaimContext, tally: Tally[tuple[int, str]]
) -> list[ClaimedDelivery]:
    """One UPDATE for all that one holder takes for the same time, and the counters with them."""
    by_holder: dict[tuple[int, int], list[_DueRow]] = {}
    for want, mine in zip(holding.wants, shared(rows, holding.wants), strict=True):
        by_holder.setdefault((want.owner, want.lease_ms), []).extend(mine)
    claimed: dict[int, ClaimedDelivery] = {}
    statements = []
    for (owner, lease_ms), some in by_holder.items():
        until = holding.now + timedelta(milliseconds=lease_ms)
        claimed |= {row.id: _claimed(row, until) for row in some}
        if some:
            statements.append(_leasing(some, until, owner))
    for (consumer_id, state), count in Tally((row.consumer_id, row.state) for row in rows).items():
        tally[consumer_id, state] -= count
        tally[consumer_id, DeliveryState.IN_FLIGHT.value] += count
    statements += Counter.adding(tally, holding.slot)
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


def _go_on(
    rows: list[_DueRow], decided: list[acks.Move], now: datetime, tally: Tally[tuple[int, str]]
) -> list[_DueRow]:
    """Move what is decided without another try; the other rows."""
    acks.move(decided, now)
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
    """Those that may be sent (again): of a key that a person holds, the next try waits.

    What was never tried waits already: it stands behind in its lane, or was put back there.
    """
    again = [row for row in rows if row.ordering_key and (row.attempt_count or row.replay_id)]
    if not again:
        return rows
    held = lanes.paused((row.consumer_id, row.ordering_key) for row in again)
    heads = {
        row.id: lane_id(row.consumer_id, row.ordering_key)
        for row in again
        if (row.consumer_id, row.ordering_key) in held
    }
    if not heads:
        return rows
    back = lanes.step_back(heads, now)
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
    """What ended is in nobody's way any more: who asks next finds the one behind it."""
    ordered = config_cache.ordered()
    lanes.leave(
        (
            ClosingEntry(row.id, row.consumer_id, row.ordering_key, is_dead=row.id in dead)
            for row in rows
            if row.ordering_key and row.consumer_id in ordered
        ),
        now,
    )


def _record_lapsed(lapsed: list[_DueRow], heard: set[int], now: str) -> dict[int, bool]:
    """The attempt that nobody closed becomes history; its holder can no longer close it.

    Those that were ``heard`` of were not in vain. Returns which of the others their consumers are
    charged for, and whether it was the last attempt of each.
    """
    if not lapsed:
        return {}
    spoilt = [row for row in lapsed if row.id not in heard]
    views = config_cache.consumers()
    charged = {
        row.id: lifecycle.is_last_lease(row.failure_count, rule=view.retry_for(row.event_type))
        for row in spoilt
        if (view := views.get(row.consumer_id)) and view.charges_leases
    }
    free = [row.id for row in spoilt if row.id not in charged]
    for counted, ids in (("failure_count", list(charged)), ("interruption_count", free)):
        if ids:
            raw.execute(
                f"UPDATE {TABLE} SET {counted} = {counted} + 1 WHERE id IN ({raw.listed(ids)})"
            )
    error = "The worker vanished before it could record an answer."
    LAPSED.write(((new_id(), row.id, row.attempt_count), (now, error)) for row in lapsed)
    return charged


def _counted(row: _DueRow, charged: Mapping[int, bool]) -> _DueRow:
    """The row as `_record_lapsed` has written it."""
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
