"""Horizon: each consumer's earliest due instant, read in index order and locking nothing."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import connection

from delivery.models import Delivery

LEVELS = range(9, -1, -1)
CONSUMERS_PER_QUERY = 40
"""SQLite allows 500 terms of a union; 10 levels each."""
TABLE = Delivery._meta.db_table


def next_due(consumer_ids: Iterable[int]) -> dict[int, datetime]:
    """Each consumer's earliest due instant, future ones included; consumers without are absent."""
    wanted = sorted(consumer_ids)
    found: dict[int, datetime] = {}
    for start in range(0, len(wanted), CONSUMERS_PER_QUERY):
        sql, values = _earliest(wanted[start : start + CONSUMERS_PER_QUERY])
        with connection.cursor() as cursor:
            cursor.execute(sql, values)
            for consumer_id, due_at in cursor.fetchall():
                instant = _instant(due_at)
                found[consumer_id] = min(found.get(consumer_id, instant), instant)
    return found


def _earliest(consumer_ids: Sequence[int]) -> tuple[str, list[Any]]:
    # A constant lower bound makes each term a range: finished rows (no due_at) are never read.
    never = connection.ops.adapt_datetimefield_value(datetime(2000, 1, 1, tzinfo=UTC))
    term = (
        f"SELECT * FROM (SELECT consumer_id, due_at FROM {TABLE} "
        "WHERE consumer_id = %s AND priority = %s AND due_at > %s "
        "ORDER BY due_at, id LIMIT 1) AS t{}"
    )
    terms = [(consumer_id, level) for consumer_id in consumer_ids for level in LEVELS]
    sql = " UNION ALL ".join(term.format(place) for place in range(len(terms)))
    return sql, [value for consumer_id, level in terms for value in (consumer_id, level, never)]


def _instant(value: datetime | str) -> datetime:
    """A raw column as an instant: SQLite hands text out, MySQL naive UTC."""
    instant = datetime.fromisoformat(value) if isinstance(value, str) else value
    return instant.replace(tzinfo=UTC)
