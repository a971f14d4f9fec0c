"""Share a claim among several consumers that have more due deliveries than it can take."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

Row: TypeAlias = tuple[int, Any, int]
"""Negated priority, due time and id of a due delivery, so that rows sort by urgency."""
LEVELS = range(9, -1, -1)
"""All priorities, the highest first."""


def by_age(row: Row) -> tuple[Any, int]:
    """The sort key that ignores priority."""
    return row[1:]


def share_out(
    found: Mapping[int, Sequence[Row]],
    limits: Mapping[int, int],
    shortened: Collection[int],
    most: int,
    *,
    oldest_first: bool = False,
) -> dict[int, list[Row]]:
    """Choose at most ``most`` due rows across consumers, within each one's limit, in order.

    The highest priority goes first, whichever consumer it is for; within a priority the row that
    has been due longest. ``found`` has each consumer's rows, up to one more than its limit of each
    priority. For the ``shortened`` consumers the limit is only a share: if it excludes a row,
    nothing of lower priority is chosen instead, so that the next claim has room for that row.
    ``oldest_first`` is the starvation guard: half is chosen by age alone, then the rest by
    priority.
    """
    chosen: dict[int, list[Row]] = {consumer_id: [] for consumer_id in found}
    owners = {row: consumer_id for consumer_id, rows in found.items() for row in rows}
    ordered = sorted(owners)
    taken = 0
    if oldest_first:
        room = sum(min(limits[consumer_id], len(rows)) for consumer_id, rows in found.items())
        half = max(1, min(most, room) // 2)
        for row in sorted(ordered, key=by_age):
            mine = chosen[owners[row]]
            if taken < half and len(mine) < limits[owners[row]]:
                mine.append(row)
                taken += 1
        ordered = sorted(owners.keys() - set(chain.from_iterable(chosen.values())))
    lowest = 0
    for row in ordered:
        consumer_id = owners[row]
        if taken >= most or row[0] > lowest:
            break
        mine = chosen[consumer_id]
        if len(mine) < limits[consumer_id]:
            mine.append(row)
            taken += 1
        elif consumer_id in shortened:
            lowest = min(lowest, row[0])
    return chosen
