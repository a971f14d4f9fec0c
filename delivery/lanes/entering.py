"""Append deliveries to their lanes."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from channels_app import clock
from channels_app.config_cache import config_cache
from channels_app.models import raw
from delivery.lanes.tables import DELIVERIES, LANES, NEVER, WAITERS, keyed, lengthen, lock
from delivery.models import Lane, LaneWaiter
from delivery.rules.lanes import lane_id

NEW = raw.Insert(
    Lane,
    numbers=("id", "consumer_id", "head_id", "last_place", "waiting_count"),
    values=("ordering_key", "head_at"),
)
WAITING = raw.Insert(LaneWaiter, numbers=("delivery_id", "lane_id", "place"), values=("due_at",))


class NewEntry(NamedTuple):
    """A delivery that is about to be opened."""

    delivery_id: int
    consumer_id: int
    ordering_key: str
    due_at: str


@dataclass(frozen=True, slots=True)
class Entered:
    """Which deliveries must wait, and the statements that store it."""

    behind: frozenset[int] = frozenset()
    """Deliveries whose ``due_at`` must be rules.lanes.BEHIND."""
    statements: list[raw.Statement] = field(default_factory=list)


def enter(entrants: Iterable[NewEntry], now: datetime) -> Entered:
    """Append deliveries to their lanes in the order given.

    The first delivery of an empty lane is its head. A dead head that is queued again keeps its
    place. The caller executes the statements. If another transaction creates the same lane they
    collide, and the caller must run its transaction again.
    """
    by_lane: dict[int, list[NewEntry]] = {}
    for entrant in entrants:
        key = lane_id(entrant.consumer_id, entrant.ordering_key)
        by_lane.setdefault(key, []).append(entrant)
    if not by_lane:
        return Entered()
    known = lock(by_lane)
    new: list[raw.Row] = []
    waiters: list[raw.Row] = []
    longer: dict[int, list[int]] = {}
    unblocked: list[int] = []
    for key, some in sorted(by_lane.items()):
        lane, last = known.get(key), 0
        if lane is None:
            head, *behind = some
            numbers = key, head.consumer_id, head.delivery_id, len(behind), len(behind)
            new.append((numbers, (head.ordering_key, raw.text(now))))
        else:
            behind, last = [it for it in some if it.delivery_id != lane.head_id], lane.last_place
            longer.setdefault(len(behind), []).append(key)
            unblocked += [key] * (len(behind) < len(some))
        places = enumerate(behind, last + 1)
        waiters += [((one.delivery_id, key, place), (one.due_at,)) for place, one in places]
    statements = [*NEW.statements(new), *WAITING.statements(waiters)]
    statements += [lengthen(count, keys) for count, keys in longer.items() if count]
    if unblocked:
        statements.append(_unblocking(unblocked, now))
    return Entered(frozenset(numbers[0] for numbers, _ in waiters), statements)


def enter_rows(delivery_ids: Collection[int]) -> None:
    """Append deliveries that have just been queued; waiting ones keep their due times."""
    config_cache.refresh()
    rows = keyed(delivery_ids, "message_id, CAST(due_at AS CHAR)")
    rows.sort(key=lambda row: row[3])
    entered = enter((NewEntry(row[0], row[1], row[2], row[4]) for row in rows), clock.now())
    if not entered.statements:
        return
    # Delete entries left from before: their places are no longer valid.
    raw.execute(
        f"DELETE FROM {WAITERS} WHERE delivery_id IN ({raw.listed(row[0] for row in rows)})"
    )
    raw.execute_all(entered.statements)
    if entered.behind:
        behind = raw.listed(sorted(entered.behind))
        raw.execute(f"UPDATE {DELIVERIES} SET due_at = %s WHERE id IN ({behind})", [NEVER])


def _unblocking(keys: Sequence[int], now: datetime) -> raw.Statement:
    return (
        f"UPDATE {LANES} SET blocked_at = NULL, head_at = %s WHERE id IN ({raw.listed(keys)})",
        [raw.text(now)],
    )
