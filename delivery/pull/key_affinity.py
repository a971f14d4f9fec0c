"""Keep ordering keys with one worker of a pull consumer while it keeps asking (S2-66).

This is a preference and not a lock: delivery/ordering/key_queue.py guarantees the order within a
key.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

from django.db import IntegrityError

from channels_app.database import raw
from channels_app.database.raw import dialect
from delivery.core import recipients
from delivery.core.ordering import key_number
from delivery.core.recipients import LEVELS
from delivery.models import Delivery, PullWorker

SCAN_ROWS = 1000
"""Due rows of each priority to examine. A worker that finds this many rows without one of its own
keys claims those of others. That helps slow workers, and rows further back are reached in the
end."""
TABLE = Delivery._meta.db_table
BY_CLAIM = dialect.hint("delivery_claim")


class _DueRow(NamedTuple):
    """A row that may be claimed."""

    id: int
    priority: int
    due_at: Any
    ordering_key: str


def join(owner: int, consumer_id: int, name: str, now: datetime, until: datetime) -> None:
    """Reserve keys for a worker until then; call this every few seconds, not for each receive."""
    mine = PullWorker.objects.filter(id=owner)
    if mine.update(keys_until=until):
        return
    try:
        PullWorker.objects.create(
            id=owner, consumer_id=consumer_id, name=name, seen_at=now, keys_until=until
        )
    except IntegrityError:
        mine.update(keys_until=until)  # another process was first, or the consumer is deleted


def members(consumer_id: int, now: datetime) -> dict[int, datetime]:
    """Return the workers that share the consumer's keys, and when their membership ends."""
    rows = PullWorker.objects.filter(consumer_id=consumer_id, keys_until__gt=now)
    found = rows.values_list("id", "keys_until")
    return {worker: until for worker, until in found if until is not None}


def candidates_sql(consumer_id: int, now: datetime) -> tuple[str, list[Any]]:
    """Return the query for due rows: a range per level, each in index order."""
    sql = dialect.union(
        f"SELECT id, priority, due_at, ordering_key FROM {TABLE}{BY_CLAIM} "
        f"WHERE consumer_id = {consumer_id:d} AND priority = {level:d} AND due_at <= %s "
        f"ORDER BY due_at, id LIMIT {SCAN_ROWS:d}"
        for level in LEVELS
    )
    return sql, [raw.text(now)] * len(LEVELS)


def choose(
    consumer_id: int,
    limit: int,
    owner: int,
    workers: Collection[int],
    now: datetime,
    *,
    oldest_first: bool,
) -> list[int]:
    """Return due deliveries for one worker: those without a key, or with a key of its own."""
    rows = [_DueRow(*row) for row in raw.read(*candidates_sql(consumer_id, now))]
    keys = {row.ordering_key for row in rows if row.ordering_key}
    others = {
        key
        for key in keys
        if recipients.owning_consumer(key_number(consumer_id, key), workers) not in {owner, None}
    }
    mine = [row for row in rows if row.ordering_key not in others]
    if not mine and len(rows) >= SCAN_ROWS:
        mine = rows
    mine.sort(key=lambda row: (0 if oldest_first else -row.priority, row.due_at, row.id))
    return [row.id for row in mine[:limit]]
