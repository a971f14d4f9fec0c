"""Read the newest deliveries of chosen consumers and states, using only short index ranges.

No index serves an ORDER BY id over several consumers or states: on ten million rows the database
would sort or scan them. So this module reads one range for each (consumer, state) that the counters
show as not empty, and merges them: a few rows of each, however long the history.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.db import connection

from delivery.models import Counter, Delivery
from delivery.models.counter import MADE

MAX_ROWS = 1000
"""Maximum rows of a filtered list."""
BUDGET = 50_000
"""Maximum rows read from all ranges together; with many ranges, fewer rows of each."""
MIN_ROWS = 100
RANGES = 200
"""Maximum terms of one UNION; SQLite allows 500."""
TERM = (
    "SELECT id FROM (SELECT id{columns} FROM {table} WHERE {pair}id >= %s "
    "ORDER BY id DESC LIMIT %s) AS t{place}{only}"
)
PAIR = "consumer_id = %s AND state = %s AND "

Pair = tuple[int, str] | tuple[()]
"""Consumer and state; empty for the whole table in the order of its key."""
Ended = Mapping[str, str | int]
"""Outcome and status code of the last attempt, by column."""


def newest(
    consumer_ids: Collection[int] | None,
    states: Collection[str] | None,
    *,
    since: int = 0,
    ended: Ended | None = None,
    most: int = MAX_ROWS,
) -> list[int]:
    """Return keys of the newest rows, descending.

    None means any consumer, any state; ``since`` is a key.

    No index serves ``ended``, so it filters the newest rows of the other filters.
    """
    pairs = _pairs(consumer_ids, states)
    depth = max(MIN_ROWS, min(MAX_ROWS, BUDGET // max(1, len(pairs))))
    limit = min(most, depth)
    found: list[int] = []
    for start in range(0, len(pairs), RANGES):
        found += _read(
            pairs[start : start + RANGES], since, ended or {}, depth if ended else limit, limit
        )
    return sorted(found, reverse=True)[:limit]


def _pairs(consumer_ids: Collection[int] | None, states: Collection[str] | None) -> Sequence[Pair]:
    if consumer_ids is None and states is None:
        return [()]
    counters = Counter.objects.exclude(state=MADE)
    if consumer_ids is not None:
        counters = counters.filter(consumer_id__in=consumer_ids)
    if states is not None:
        counters = counters.filter(state__in=states)
    # A shard of a counter may be negative while the sum is not: any shard means that there was a
    # row.
    return sorted(set(counters.values_list("consumer_id", "state")))


def _read(pairs: Sequence[Pair], since: int, ended: Ended, depth: int, limit: int) -> list[int]:
    """Read ``depth`` rows of each range, and return up to ``limit`` of all."""
    union = " UNION ALL ".join(_term(pair, place, ended) for place, pair in enumerate(pairs))
    values: list[Any] = [part for pair in pairs for part in (*pair, since, depth, *ended.values())]
    with connection.cursor() as cursor:
        # Only TERM, repeated; values are parameters.
        sql = f"SELECT id FROM ({union}) AS u ORDER BY id DESC LIMIT %s"  # noqa: S608
        cursor.execute(sql, [*values, limit])
        return [row[0] for row in cursor.fetchall()]


def _term(pair: Pair, place: int, ended: Ended) -> str:
    table = Delivery._meta.db_table
    if pair and connection.vendor == "mysql":
        table += " FORCE INDEX (delivery_list)"  # the primary key gives the order, but no range
    return TERM.format(
        table=table,
        pair=PAIR if pair else "",
        place=place,
        columns="".join(f", {column}" for column in ended),
        only=" WHERE " + " AND ".join(f"{column} = %s" for column in ended) if ended else "",
    )
