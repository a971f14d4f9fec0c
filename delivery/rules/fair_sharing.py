"""Share a claim among several consumers that have more due than it can take."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

Row: TypeAlias = tuple[int, Any, int]
"""Priority, negative, instant and id of a delivery that is due: so they sort."""
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
    """``most`` of what is due, across consumers and within each one's limit, in order.

    The highest priority goes first, whosesoever it is; within a priority what is due longest.
    ``found`` has each consumer's rows, up to one more than its limit of each priority. Of the
    ``shortened`` the limit is a share and not all that they may take: where it leaves a row out,
    nothing of lower priority goes instead, so that the next claim finds room for that row.
    ``oldest_first`` is the starvation guard: half goes by age alone, then the rest by priority.
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
