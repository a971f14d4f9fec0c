"""Lock lanes, and find out which deliveries have one."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from channels_app.config_cache import config_cache
from channels_app.models import raw
from delivery.models import Delivery, Lane, LaneWaiter
from delivery.rules.lanes import BEHIND, lane_id

LANES, WAITERS, DELIVERIES = (one._meta.db_table for one in (Lane, LaneWaiter, Delivery))
NEVER = raw.text(BEHIND)


class Locked(NamedTuple):
    """A lane that is locked until the end of the transaction."""

    id: int
    consumer_id: int
    head_id: int | None
    last_place: int
    waiting_count: int
    is_paused: int


def lock(lanes: Iterable[int]) -> dict[int, Locked]:
    """Lock the lanes that exist until the end of the transaction; return them by id."""
    keys = sorted(lanes)
    if not keys:
        return {}
    rows = raw.read(
        "SELECT id, consumer_id, head_id, last_place, waiting_count, paused_at IS NOT NULL "
        f"FROM {LANES} WHERE id IN ({raw.listed(keys)}) ORDER BY id{raw.locked()}"
    )
    return {row[0]: Locked._make(row) for row in rows}


def paused(keys: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return those of the keys (consumer, ordering key) that a person has paused."""
    known = config_cache.ordered()
    by_lane = {lane_id(*key): key for key in keys if key[1] and key[0] in known}
    if not by_lane:
        return set()
    rows = raw.read(
        f"SELECT id FROM {LANES} WHERE id IN ({raw.listed(sorted(by_lane))}) "
        "AND paused_at IS NOT NULL"
    )
    return {by_lane[key] for (key,) in rows}


def lengthen(count: int, keys: Sequence[int], places: int | None = None) -> raw.Statement:
    more = count if places is None else places
    return (
        f"UPDATE {LANES} SET waiting_count = waiting_count + {count:d}, "
        f"last_place = last_place + {more:d} WHERE id IN ({raw.listed(keys)})",
        [],
    )


def keyed(delivery_ids: Collection[int], more: str = "") -> list[tuple[Any, ...]]:
    """Return id, consumer and key of those deliveries that belong into lanes."""
    known = config_cache.ordered()
    if not known or not delivery_ids:
        return []
    columns = "id, consumer_id, ordering_key" + (f", {more}" if more else "")
    return raw.read(
        f"SELECT {columns} FROM {DELIVERIES} WHERE id IN ({raw.listed(delivery_ids)}) "
        f"AND ordering_key <> '' AND consumer_id IN ({raw.listed(known)})"
    )
