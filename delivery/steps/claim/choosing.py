"""Choosing: which rows are due, one short range per consumer and level, without locking any."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from channels_app.models import raw
from delivery.models import Delivery

LEVELS = range(9, -1, -1)
TABLE = Delivery._meta.db_table


@dataclass(frozen=True, slots=True)
class Want:
    """How much of one consumer's work to take."""

    consumer_id: int
    limit: int
    lease_ms: int
    owner: int
    """Whose lease it will be: a pump's generation, or a pull worker."""
    oldest_first: bool = False
    """Ignore priority this time: the guard against starvation (S0-42)."""
    spare: int = 0
    """Rows behind those, in case that others hold some of them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Ids of due rows, by consumer, in the order in which they are to be taken."""

    first: dict[int, list[int]]
    spare: dict[int, list[int]]
    drained: frozenset[int]
    """Consumers that had no more due rows than were asked for."""


def candidates_sql(wants: Sequence[Want], now: datetime) -> tuple[str, list[Any]]:
    """The query that finds what is due: one range per consumer and level, each in index order."""
    terms = [
        (want.consumer_id, level, want.limit + want.spare + 1) for want in wants for level in LEVELS
    ]
    sql = raw.union(
        f"SELECT id, consumer_id, priority, due_at FROM {TABLE} "
        f"WHERE consumer_id = {consumer_id:d} AND priority = {level:d} AND due_at <= %s "
        f"ORDER BY due_at, id LIMIT {limit:d}"
        for consumer_id, level, limit in terms
    )
    return sql, [raw.text(now)] * len(terms)


def choose(wants: Sequence[Want], now: datetime) -> Choice:
    """The highest levels first, or the oldest where the guard says so; a want per consumer."""
    found: dict[int, list[tuple[int, Any, int]]] = {want.consumer_id: [] for want in wants}
    for delivery_id, consumer_id, priority, due_at in raw.read(*candidates_sql(wants, now)):
        found[consumer_id].append((-priority, due_at, delivery_id))
    first: dict[int, list[int]] = {}
    spare: dict[int, list[int]] = {}
    drained: set[int] = set()
    for want in wants:
        rows = found[want.consumer_id]
        rows.sort(key=(lambda row: row[1:]) if want.oldest_first else None)
        ordered = [row[2] for row in rows[: want.limit + want.spare]]
        if ordered:
            first[want.consumer_id] = ordered[: want.limit]
            spare[want.consumer_id] = ordered[want.limit :]
        if len(rows) <= want.limit:
            drained.add(want.consumer_id)
    return Choice(first, spare, frozenset(drained))
