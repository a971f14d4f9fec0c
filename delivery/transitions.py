"""Write the states of deliveries, and all that must agree with them.

`apply` is the only way from one state to another. In the caller's transaction it writes the rows,
their counters, the queues of ordering keys, and deaths for dead-letter channels. After the commit
it counts metrics and wakes those who deliver what is due. Callers lock the rows and decide where
they go.
"""

from collections import Counter as Tally
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from django.db import transaction

from channels_app.database import raw
from channels_app.registry.cache import config_cache
from delivery import metrics
from delivery.core.lifecycle import ARROWS, FINISHED, DeliveryState, Reason, Transition
from delivery.core.outcome import Outcome
from delivery.models import Counter, DeadLetter, Delivery
from delivery.models.counter import MADE
from delivery.ordering import key_queue
from delivery.ordering.key_queue import ClosingEntry
from delivery.processes import wakeups

TABLE = Delivery._meta.db_table
SOON = timedelta(seconds=1)
"""How far ahead a wake-up pays; polling finds what is due later."""
CANCEL = Transition(DeliveryState.CANCELLED, Reason.CANCELLED, due_in=None, charged=False)
REPLAY = Transition(DeliveryState.QUEUED, Reason.REPLAYED, due_in=0.0, charged=False, is_free=True)
_NUMBERS = ("id", "message_id", "consumer_id", "channel_id", "priority")
_CONSUMER = _NUMBERS.index("consumer_id")
_VALUES = ("due_at", "expires_at", "event_type", "ordering_key", "accepted_at")
_QUEUED = raw.Insert(
    Delivery,
    numbers=_NUMBERS,
    values=_VALUES,
    same={"state": DeliveryState.QUEUED.value, "reason": Reason.ACCEPTED.value},
)
_CLAIMED = raw.Insert(
    Delivery,
    numbers=(*_NUMBERS, "lease_owner"),
    values=_VALUES,
    same={
        "state": DeliveryState.IN_FLIGHT.value,
        "reason": Reason.CLAIMED.value,
        "attempt_count": 1,
        "version": 2,  # as if it had been queued first
    },
)

Due: TypeAlias = dict[int, datetime]
"""When each consumer's earliest delivery is due that an ordering key released."""


class LostRace(Exception):
    """Another attempt has taken one of the deliveries; nothing may be committed."""


class Row(Protocol):
    """A delivery before its transition."""

    @property
    def id(self) -> int: ...
    @property
    def consumer_id(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def ordering_key(self) -> str: ...
    @property
    def accepted_at(self) -> Any: ...


class Move(NamedTuple):
    """A delivery and its transition."""

    row: Row
    to: Transition
    due_at: datetime | None = None
    """When it is due, where that is not ``to.due_in`` from now."""
    outcome: Outcome | None = None
    """How its attempt ended; None leaves outcome and status code as they are."""
    status_code: int | None = None
    fence: int | None = None
    """The attempt that the row must still be in; None if the caller has locked the row."""
    owner: int | None = None
    """Who holds the lease that begins; the next attempt begins with it."""
    undoes_claim: bool = False
    """Whether the claim's attempt never began and its number is used again."""
    replay_id: int | None = None
    """The replay that queues it, with its counts at zero."""


def apply(
    moves: Sequence[Move],
    *,
    now: datetime,
    slot: int,
    beside: Iterable[raw.Statement] = (),
    is_last: bool = False,
    wakes: bool = True,
) -> Due:
    """Write the transitions in the caller's transaction; return what ordering keys released.

    ``slot`` is the caller's slot of the counters. ``beside`` is written in the same round trip.
    ``is_last`` says that the transaction ends here, which saves the round trip of its COMMIT.
    Without ``wakes`` the caller tells who delivers what is due. Raises ValueError for a transition
    that `ARROWS` does not allow, and LostRace if a fenced row has changed.
    """
    groups = _alike(moves)
    # A pump has the configuration by which it claimed; others may have read it long ago.
    if not is_last and any(move.row.ordering_key and move.fence is None for move in moves):
        config_cache.refresh()
    leaving = _leaving(moves)
    statements = [*(_writing(group, now) for group in groups), *beside]
    statements += Counter.adding(_tally(groups), slot)
    if is_last and not any(FINISHED & {group[0].row.state, group[0].to.state} for group in groups):
        _after_commit(moves, {}, now, wakes=wakes)
        raw.execute_last(statements)
        return {}
    ending = key_queue.ending(leaving)
    written = raw.execute_all([*statements, ending] if ending else statements)
    if any(
        group[0].fence is not None and len(group) != count
        for group, count in zip(groups, written, strict=False)
    ):
        raise LostRace
    _note_deaths(moves, now)
    due = key_queue.leave(leaving, now, ended=written[-1] if ending else 0)
    if reopened := [move.row.id for move in moves if move.row.state in FINISHED]:
        key_queue.enter_rows(reopened)
    _after_commit(moves, due, now, wakes=wakes)
    return due


def creating(
    queued: Iterable[raw.Row], claimed: Iterable[raw.Row], slot: int
) -> Iterator[raw.Statement]:
    """Yield the statements that create deliveries, those claimed at birth with their owner.

    Their numbers are id, message, consumer, channel and priority, with the owner last; their values
    are due time (the lease's end), expiry, event type, ordering key and the time of acceptance. The
    caller has entered them in their ordering keys.
    """
    tally: Tally[tuple[int, str]] = Tally()
    states = (_QUEUED, DeliveryState.QUEUED, queued), (_CLAIMED, DeliveryState.IN_FLIGHT, claimed)
    for insert, state, rows in states:
        rows = list(rows)
        yield from insert.statements(rows)
        for consumer_id, count in Tally(numbers[_CONSUMER] for numbers, _ in rows).items():
            tally[consumer_id, state.value] = count
            tally[consumer_id, MADE] += count
    yield from Counter.adding(tally, slot)


def create(deliveries: Sequence[Delivery], slot: int) -> None:
    """Create queued deliveries and enter them in their ordering keys."""
    Delivery.objects.bulk_create(deliveries)
    tally: Tally[tuple[int, str]] = Tally()
    for row in deliveries:
        tally[row.consumer_id, row.state] += 1
        tally[row.consumer_id, MADE] += 1
    Counter.add(tally, slot)
    key_queue.enter_rows([row.id for row in deliveries])
    wakeups.notify_after_commit({row.consumer_id for row in deliveries})


def hand_over(
    rows: Sequence[Delivery],
    to: Mapping[int, int],
    due: Mapping[int, datetime],
    *,
    now: datetime,
    slot: int,
) -> None:
    """Give queued deliveries to other consumers; ``to`` and ``due`` go by the delivery's id."""
    released = key_queue.leave(_closing(rows), now)
    alike: dict[tuple[int, datetime], list[int]] = {}
    for row in rows:
        alike.setdefault((to[row.id], due[row.id]), []).append(row.id)
    raw.execute_all(
        [
            (
                f"UPDATE {TABLE} SET consumer_id = {consumer_id:d}, due_at = %s, "
                f"version = version + 1 WHERE id IN ({raw.listed(keys)})",
                [raw.text(due_at)],
            )
            for (consumer_id, due_at), keys in alike.items()
        ]
    )
    tally: Tally[tuple[int, str]] = Tally()
    for row in rows:
        for counted in (row.state, MADE):
            tally[row.consumer_id, counted] -= 1
            tally[to[row.id], counted] += 1
    Counter.add(tally, slot)
    key_queue.enter_rows([row.id for row in rows])
    wakeups.notify_after_commit({to[row.id] for row in rows} | released.keys())


def _alike(moves: Iterable[Move]) -> list[list[Move]]:
    """Group moves from one state that one UPDATE writes."""
    alike: dict[tuple[object, ...], list[Move]] = {}
    for move in moves:
        to = move.to
        kind = move.row.state, to.state, to.reason, to.charged, to.is_free, *move[3:]
        alike.setdefault(kind, []).append(move)
    return list(alike.values())


def _writing(group: Sequence[Move], now: datetime) -> raw.Statement:
    move, to = group[0], group[0].to
    columns = ["state = %s, reason = %s"]
    values: list[Any] = [to.state.value, to.reason.value]
    if to.state in FINISHED:
        columns.append("due_at = NULL, finished_at = %s")
        values.append(raw.text(now))
    else:
        due, instants = _due(group, now)
        columns.append(f"due_at = {due}, finished_at = NULL")
        values += instants
    if move.outcome is not None:
        columns.append("outcome = %s, status_code = %s")
        values += [move.outcome.value, move.status_code]
    if move.replay_id is not None:
        columns.append(f"failure_count = 0, interruption_count = 0, replay_id = {move.replay_id:d}")
    elif counted := to.counted:
        columns.append(f"{counted} = {counted} + 1")
    if move.owner is not None:
        columns.append(f"attempt_count = attempt_count + 1, lease_owner = {move.owner:d}")
    elif move.undoes_claim:
        columns.append("attempt_count = attempt_count - 1, lease_owner = NULL")
    else:
        columns.append("lease_owner = NULL")
    fence = ""
    if move.fence is not None:
        fence = f" AND state = %s AND attempt_count = {move.fence:d}"
        values.append(move.row.state)
    sql = (
        f"UPDATE {TABLE} SET {', '.join(columns)}, version = version + 1 "
        f"WHERE id IN ({raw.listed(move.row.id for move in group)}){fence}"
    )
    return sql, values


def _due(group: Sequence[Move], now: datetime) -> tuple[str, list[Any]]:
    """Build the SQL value of ``due_at``: one for all rows, or one each where they differ."""
    dues = {move.row.id: _due_at(move, now) for move in group}
    if len(set(dues.values())) == 1:
        return "%s", [raw.text(_due_at(group[0], now))]
    cases = " ".join([f"WHEN {delivery_id:d} THEN %s" for delivery_id in dues])
    return f"CASE id {cases} END", [raw.text(due_at) for due_at in dues.values()]


def _due_at(move: Move, now: datetime) -> datetime:
    return move.due_at or now + timedelta(seconds=move.to.due_in or 0.0)


def _tally(groups: Iterable[Sequence[Move]]) -> Tally[tuple[int, str]]:
    """Return the changes of the counters. Raises ValueError for a forbidden transition."""
    tally: Tally[tuple[int, str]] = Tally()
    for group in groups:
        state, to = group[0].row.state, group[0].to
        if (state, to.state, to.reason) not in ARROWS:
            raise ValueError(f"A delivery that is {state} cannot become {to.state} ({to.reason}).")
        for consumer_id, count in Tally([move.row.consumer_id for move in group]).items():
            tally[consumer_id, state] -= count
            tally[consumer_id, to.state.value] += count
    return tally


def _leaving(moves: Iterable[Move]) -> list[ClosingEntry]:
    """Return what leaves the ordering keys: finished deliveries of ordered consumers."""
    over = [move for move in moves if move.row.ordering_key and move.to.state in FINISHED]
    dead = {move.row.id for move in over if move.to.state is DeliveryState.DEAD}
    return _closing([move.row for move in over], dead)


def _closing(rows: Sequence[Row], dead: Container[int] = ()) -> list[ClosingEntry]:
    keyed = [row for row in rows if row.ordering_key]
    if not keyed:
        return []
    ordered = config_cache.ordered()
    return [
        ClosingEntry(row.id, row.consumer_id, row.ordering_key, row.id in dead)
        for row in keyed
        if row.consumer_id in ordered
    ]


def _note_deaths(moves: Iterable[Move], now: datetime) -> None:
    """Record deaths of consumers with a dead-letter channel; queue/dead_letters publishes them."""
    wanted = config_cache.dead_lettered()
    if not wanted:
        return
    rows = [
        DeadLetter(delivery_id=move.row.id, due_at=now)
        for move in moves
        if move.to.state is DeliveryState.DEAD and move.row.consumer_id in wanted
    ]
    # A delivery replayed and dead again before its first death was published is published once.
    DeadLetter.objects.bulk_create(rows, ignore_conflicts=True)


def _after_commit(moves: Sequence[Move], due: Due, now: datetime, *, wakes: bool) -> None:
    ended = [
        metrics.Ended(move.to.state, (now - _instant(move.row.accepted_at)).total_seconds())
        for move in moves
        if move.to.state in (DeliveryState.DELIVERED, DeliveryState.DEAD)
    ]
    if ended:
        transaction.on_commit(partial(metrics.count_deliveries, ended), robust=True)
    if not wakes:
        return
    soon = now + SOON
    awake = {consumer_id for consumer_id, due_at in due.items() if due_at < soon}
    awake |= {
        move.row.consumer_id
        for move in moves
        if move.to.state is DeliveryState.QUEUED and _due_at(move, now) < soon
    }
    if awake:
        wakeups.notify_after_commit(awake)


def _instant(stored: datetime | str) -> datetime:
    return raw.instant(stored) if isinstance(stored, str) else stored
