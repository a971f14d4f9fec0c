"""Keep ordering keys with one worker of a pull consumer while it keeps asking (S2-66).

This is a preference and not a lock: delivery/ordering/key_queue.py guarantees the order within a
key.
"""

import threading
import time
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import IntegrityError

from channels_app.database import clock, raw
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
MIN_STAY_S = 30.0
"""Longer than the longest long poll, so that a worker that keeps asking stays a member."""
MAX_STAY_S = 300.0
"""Most seconds for which the keys of a worker that left wait for it, whatever its lease time."""
JOIN_INTERVAL_S = 2.0
SCAN_INTERVAL_S = 1.0
"""Seconds until processes that a worker does not call know of it."""
MAX_KEPT = 10_000


class StickyKeys:
    """Which workers share the ordering keys of each consumer. Safe for use by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Clear the cache, so that the tables are read again."""
        self._joined: dict[int, float] = {}
        self._workers: dict[int, tuple[float, dict[int, datetime]]] = {}

    def join(self, owner: int, consumer_id: int, worker: str, lease_ms: int) -> list[int]:
        """Return the workers that share the consumer's keys, after adding ``owner`` to them.

        A worker stays a member for the time of one lease after it last joined, which it does
        whenever it asks. One that stops asking is dropped when its leases end.
        """
        now, ticks = clock.now(), time.monotonic()
        if ticks - self._joined.get(owner, float("-inf")) >= JOIN_INTERVAL_S:
            stay = min(max(lease_ms / 1000, MIN_STAY_S), MAX_STAY_S)
            join(owner, consumer_id, worker, now, now + timedelta(seconds=stay))
            with self._lock:
                if len(self._joined) + len(self._workers) > MAX_KEPT:
                    self.forget()
                self._joined[owner] = ticks
        read_at, workers = self._workers.get(consumer_id, (float("-inf"), {}))
        if ticks - read_at >= SCAN_INTERVAL_S or owner not in workers:
            workers = members(consumer_id, now)
            self._workers[consumer_id] = ticks, workers
        return [member for member, until in workers.items() if until > now]


sticky_keys = StickyKeys()


class _DueRow(NamedTuple):
    """A row that may be claimed."""

    id: int
    priority: int
    due_at: Any
    ordering_key: str


def join(owner: int, consumer_id: int, name: str, now: datetime, until: datetime) -> None:
    """Reserve keys for a worker until then; call this every few seconds, not for each receive."""
    rows = PullWorker.objects.filter(id=owner)
    if rows.update(keys_until=until):
        return
    try:
        PullWorker.objects.create(
            id=owner, consumer_id=consumer_id, name=name, seen_at=now, keys_until=until
        )
    except IntegrityError:
        rows.update(keys_until=until)  # another process was first, or the consumer is deleted


def members(consumer_id: int, now: datetime) -> dict[int, datetime]:
    """Return the workers that share the consumer's keys, and when their membership ends."""
    rows = PullWorker.objects.filter(consumer_id=consumer_id, keys_until__gt=now)
    memberships = rows.values_list("id", "keys_until")
    return {worker: until for worker, until in memberships if until is not None}


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
    foreign_keys = {
        key
        for key in keys
        if recipients.owning_consumer(key_number(consumer_id, key), workers) not in {owner, None}
    }
    eligible = [row for row in rows if row.ordering_key not in foreign_keys]
    if not eligible and len(rows) >= SCAN_ROWS:
        eligible = rows
    eligible.sort(key=lambda row: (0 if oldest_first else -row.priority, row.due_at, row.id))
    return [row.id for row in eligible[:limit]]
