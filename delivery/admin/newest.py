"""Newest: the latest deliveries of chosen consumers and states, by short index ranges alone.

An ORDER BY id over several consumers or states is served by no index: on ten million rows it would
sort or scan them. One range per (consumer, state) that the counters say is not empty, merged, reads
a few rows of each whatever the history.
"""

from collections.abc import Collection, Sequence
from typing import Any

from django.db import connection

from delivery.models import Counter, Delivery
from delivery.models.counter import MADE

MOST = 1000
"""Rows that a filtered list leads through."""
BUDGET = 50_000
"""Rows that all ranges together may read; many ranges read fewer rows each."""
FEWEST = 100
RANGES = 200
"""Terms of one union; SQLite allows 500."""
TERM = (
    f"SELECT * FROM (SELECT id FROM {Delivery._meta.db_table} "  # noqa: S608 - our own table
    "WHERE consumer_id = %s AND state = %s AND id >= %s ORDER BY id DESC LIMIT %s) AS t{}"
)


def newest(
    consumer_ids: Collection[int] | None,
    states: Collection[str] | None,
    *,
    since: int = 0,
    most: int = MOST,
) -> list[int]:
    """Keys of the newest rows, falling. None means any consumer, any state; ``since`` is a key."""
    pairs = _pairs(consumer_ids, states)
    limit = min(most, max(FEWEST, min(MOST, BUDGET // max(1, len(pairs)))))
    found: list[int] = []
    for start in range(0, len(pairs), RANGES):
        found += _read(pairs[start : start + RANGES], since, limit)
    return sorted(found, reverse=True)[:limit]


def _pairs(
    consumer_ids: Collection[int] | None, states: Collection[str] | None
) -> list[tuple[int, str]]:
    counters = Counter.objects.exclude(state=MADE)
    if consumer_ids is not None:
        counters = counters.filter(consumer_id__in=consumer_ids)
    if states is not None:
        counters = counters.filter(state__in=states)
    # Shares of a count may be negative, their sum is not: any share says that there was a row.
    return sorted(set(counters.values_list("consumer_id", "state")))


def _read(pairs: Sequence[tuple[int, str]], since: int, limit: int) -> list[int]:
    union = " UNION ALL ".join(TERM.format(place) for place in range(len(pairs)))
    values: list[Any] = [part for pair in pairs for part in (*pair, since, limit)]
    with connection.cursor() as cursor:
        # Nothing but TERM, repeated; values are parameters.
        sql = f"SELECT id FROM ({union}) AS u ORDER BY id DESC LIMIT %s"  # noqa: S608
        cursor.execute(sql, [*values, limit])
        return [row[0] for row in cursor.fetchall()]
