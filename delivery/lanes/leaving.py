"""Remove finished deliveries from their lanes, and release the next ones."""

from collections import Counter as Tally
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from channels_app import failpoints
from channels_app.config_cache import config_cache
from channels_app.models import raw
from delivery import metrics
from delivery.lanes.tables import (
    DELIVERIES,
    LANES,
    NEVER,
    WAITERS,
    Locked,
    keyed,
    lengthen,
    lock,
)
from delivery.rules.lanes import lane_id
from delivery.rules.lifecycle import DeliveryState

NEXT = f"""
    SELECT (
        SELECT delivery_id FROM {WAITERS} AS waiter
        WHERE waiter.lane_id = lane.id AND waiter.place > lane.head_place
        ORDER BY waiter.place LIMIT 1
    ) FROM {LANES} AS lane WHERE lane.id IN ({{lanes}})
"""
"""Reads one index entry per lane, however many deliveries wait."""


class ClosingEntry(NamedTuple):
    """A delivery that is no longer open."""

    delivery_id: int
    consumer_id: int
    ordering_key: str
    is_dead: bool = False


def ending(leavers: Iterable[ClosingEntry]) -> raw.Statement | None:
    """Return the statement that deletes lanes in which nothing waits behind these heads.

    It needs no read before. Its row count is the number of deleted lanes; `leave` handles the
    others. Lanes with dead heads are excluded because they may have to block, and paused lanes
    remain.
    """
    heads = {
        lane_id(one.consumer_id, one.ordering_key): one.delivery_id
        for one in leavers
        if not one.is_dead
    }
    if not heads:
        return None
    return (
        f"DELETE FROM {LANES} WHERE id IN ({raw.listed(sorted(heads))}) "
        f"AND head_id IN ({raw.listed(heads.values())}) "
        "AND waiting_count = 0 AND paused_at IS NULL",
        [],
    )


def leave(leavers: Iterable[ClosingEntry], now: datetime, *, ended: int = 0) -> dict[int, datetime]:
    """Remove finished deliveries from their lanes and release the next ones.

    ``ended`` is how many of their lanes `ending` has deleted already. Returns when each consumer's
    released delivery is due. Deliveries in no lane are ignored.
    """
    by_id = {one.delivery_id: one for one in leavers}
    lane_of = {key: lane_id(one.consumer_id, one.ordering_key) for key, one in by_id.items()}
    if len(theirs := set(lane_of.values())) == ended:
        return {}
    lanes = lock(theirs)
    heads = {lane.head_id for lane in lanes.values()}
    waiting = {key for key, lane in lane_of.items() if lane in lanes and key not in heads}
    if waiting:
        lanes = _drop(waiting, lanes)
    free = [lane for lane in lanes.values() if lane.head_id in by_id]
    if not free:
        return {}
    stands = is_stalled()
    dead = {one.delivery_id for one in by_id.values() if one.is_dead}
    blocked = [it.id for it in free if it.head_id in dead and it.consumer_id in stands]
    block(blocked, now)
    return advance([lane for lane in free if lane.id not in blocked], now)


def leave_rows(
    rows: Iterable[tuple[int, int]], now: datetime, *, dead: bool = False
) -> dict[int, datetime]:
    """Do the same for finished deliveries of which the caller has only id and consumer."""
    config_cache.refresh()
    known = config_cache.ordered()
    found = keyed([key for key, consumer_id in rows if consumer_id in known])
    return leave((ClosingEntry(row[0], row[1], row[2], dead) for row in found), now)


def is_stalled() -> set[int]:
    """Return consumers whose keys wait behind a dead delivery until a person decides (S3-14)."""
    return {view.id for view in config_cache.ordered().values() if view.head_of_line == "block"}


def block(lanes: Sequence[int], now: datetime) -> None:
    """Block locked lanes behind a dead head."""
    if lanes:
        raw.execute(
            f"UPDATE {LANES} SET blocked_at = %s WHERE id IN ({raw.listed(lanes)})",
            [raw.text(now)],
        )


def advance(lanes: Sequence[Locked], now: datetime) -> dict[int, datetime]:
    """Make the next entry of locked lanes without a head their head; delete empty lanes.

    Paused lanes stay without a head. Returns when each consumer's released delivery is due.
    """
    if not lanes:
        return {}
    paused = [lane.id for lane in lanes if lane.is_paused]
    if paused:
        raw.execute(
            f"UPDATE {LANES} SET head_id = NULL, head_at = %s, blocked_at = NULL "
            f"WHERE id IN ({raw.listed(paused)})",
            [raw.text(now)],
        )
    going = {lane.id: lane for lane in lanes if not lane.is_paused}
    following = _next(key for key, lane in going.items() if lane.waiting_count)
    ended = going.keys() - {key for key, *_ in following}
    if ended:
        raw.execute(f"DELETE FROM {LANES} WHERE id IN ({raw.listed(sorted(ended))})")
    if not following:
        failpoints.reach("in_lane")
        return {}
    instant = raw.text(now)
    dues = {delivery_id: max(due_at, instant) for _, delivery_id, _, due_at in following}
    raw.execute_all([*releasing(dues), _heads(following, instant)])
    failpoints.reach("in_lane")
    metrics.ORDERING_WAIT.observe_all(
        [max(0.0, (now - raw.instant(due_at)).total_seconds()) for *_, due_at in following]
    )
    due: dict[int, datetime] = {}
    for key, delivery_id, *_ in following:
        at, consumer_id = raw.instant(dues[delivery_id]), going[key].consumer_id
        due[consumer_id] = min(due.get(consumer_id, at), at)
    return due


def releasing(dues: dict[int, str]) -> Iterable[raw.Statement]:
    """Return statements that make waiting deliveries due, by id, unless they were cancelled."""
    by_instant: dict[str, list[int]] = {}
    for delivery_id, due_at in dues.items():
        by_instant.setdefault(due_at, []).append(delivery_id)
    for due_at, keys in by_instant.items():
        yield (
            f"UPDATE {DELIVERIES} SET due_at = %s, version = version + 1 "
            f"WHERE id IN ({raw.listed(keys)}) AND state = %s AND due_at = %s",
            [due_at, DeliveryState.QUEUED.value, NEVER],
        )
    yield f"DELETE FROM {WAITERS} WHERE delivery_id IN ({raw.listed(dues)})", []


def _next(lanes: Iterable[int]) -> list[tuple[int, int, int, str]]:
    """Return lane, delivery, place and due time of the first waiting entry of each lane."""
    keys = sorted(lanes)
    found = raw.read(NEXT.format(lanes=raw.listed(keys))) if keys else []
    ids = [delivery_id for (delivery_id,) in found if delivery_id is not None]
    if not ids:
        return []
    # Locked, so that a move in progress is seen with its new time instead of the committed one.
    rows = raw.read(
        "SELECT lane_id, delivery_id, place, CAST(due_at AS CHAR) "
        f"FROM {WAITERS} WHERE delivery_id IN ({raw.listed(ids)}){raw.locked()}"
    )
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def _heads(following: Sequence[tuple[int, int, int, str]], now: str) -> raw.Statement:
    heads = " ".join(f"WHEN {key:d} THEN {delivery_id:d}" for key, delivery_id, *_ in following)
    places = " ".join(f"WHEN {key:d} THEN {place:d}" for key, _, place, _ in following)
    return (
        f"UPDATE {LANES} SET head_id = CASE id {heads} END, head_place = CASE id {places} END, "
        "head_at = %s, waiting_count = waiting_count - 1, blocked_at = NULL "
        f"WHERE id IN ({raw.listed(key for key, *_ in following)})",
        [now],
    )


def _drop(delivery_ids: Collection[int], lanes: dict[int, Locked]) -> dict[int, Locked]:
    """Remove waiting deliveries from their lanes, and return the lanes as they are then."""
    gone = raw.listed(sorted(delivery_ids))
    found = raw.read(f"SELECT lane_id FROM {WAITERS} WHERE delivery_id IN ({gone})")
    fewer = Tally(key for (key,) in found if key in lanes)
    if not fewer:
        return lanes
    by_count: dict[int, list[int]] = {}
    for key, count in fewer.items():
        by_count.setdefault(count, []).append(key)
    raw.execute_all(
        [
            (f"DELETE FROM {WAITERS} WHERE delivery_id IN ({gone})", []),
            *(lengthen(-count, keys, 0) for count, keys in by_count.items()),
        ]
    )
    return {
        key: lane._replace(waiting_count=lane.waiting_count - fewer[key])
        for key, lane in lanes.items()
    }
