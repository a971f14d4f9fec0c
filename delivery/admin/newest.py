"""Newest: the latest deliveries of chosen consumers and states, by short index ranges alone.

An ORDER BY id over several consumers or states is served by no index: on ten million rows it would
sort or scan them. One range per (consumer, state) that the counters say is not empty, merged, reads
a few rows of each whatever the history.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.db import connection

from delivery.models import Counter, Delivery
from delivery.models.counter import MADE

MAX_ROWS = 1000
"""Rows that a filtered list leads through."""
BUDGET = 50_000
"""Rows that all ranges together may read; many ranges read fewer rows each."""
MIN_ROWS = 100
RANGES = 200
"""Terms of one union; SQLite allows 500."""
TERM = (
    "SELECT id FROM (SELECT id{columns} FROM {table} WHERE {pair}id >= %s "
    "ORDER BY id DESC LIMIT %s) AS t{place}{only}"
)
PAIR = "consumer_id = %s AND state = %s AND "

Pair = tuple[int, str] | tuple[()]
"""Consumer and state; empty for the whole table, in the order of its key."""
Ended = Mapping[str, str | int]
"""How the last attempt did, by column: outcome and status code."""


def newest(
    consumer_ids: Collection[int] | None,
    states: Collection[str] | None,
    *,
    since: int = 0,
    ended: Ended | None = None,
    most: int = MAX_ROWS,
) -> list[int]:
    """Keys of the newest rows, falling. None means any consumer, any state; ``since`` is a key.

    No index serves ``ended``: it is looked for among the newest of what the others leave.
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
    # Shares of a count may be negative, their sum is not: any share says that there was a row.
    return sorted(set(counters.values_list("consumer_id", "state")))


def _read(pairs: Sequence[Pair], since: int, ended: Ended, depth: int, limit: int) -> list[int]:
    """Of each range so many rows, ``depth``, are read, and of all together ``limit`` returned."""
    union = " UNION ALL ".join(_term(pair, place, ended) for place, pair in enumerate(pairs))
    values: list[Any] = [part for pair in pairs for part in (*pair, since, depth, *ended.values())]
    with connection.cursor() as cursor:
        # Nothing but TERM, repeated; values are parameters.
        sql = f"SELECT id FROM ({union}) AS u ORDER BY id DESC LIMIT %s"  # noqa: S608
        cursor.execute(sql, [*values, limit])
        return [row[0] for row in cursor.fetchall()]


def _term(pair: Pair, place: int, ended: Ended) -> str:
    table = Delivery._meta.db_table
    if pair and connection.vendor == "mysql":
        table += " FORCE INDEX (delivery_list)"  # the key alone would serve the order, but no range
    return TERM.format(
        table=table,
        pair=PAIR if pair else "",
        place=place,
        columns="".join(f", {column}" for column in ended),
        only=" WHERE " + " AND ".join(f"{column} = %s" for column in ended) if ended else "",
    )
