"""Select the messages of a replay from lake and tables, and stage them for the broker.

The broker inserts the staged rows. Rows and the position up to which they were written commit
together, so that a run continues where a killed one stopped, and writes nothing twice.
"""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pipeline.broker import tables
from pipeline.broker.database import Database
from pipeline.execution.job import Context, JobError
from pipeline.lake.datasets import Datasets
from pipeline.transforms.reconcile import NOW_MARGIN, SKEW

MESSAGE_COLUMNS = tuple(column.name for column in tables.MESSAGE_COLUMNS)
UNDER_WAY = ("queued", "in_flight", "awaiting_ack")
ALL, DEAD, MISSING = "all", "dead", "missing"
BATCH_ROWS = 500
MAX_STAGED = 10_000
"""Maximum staged rows that wait for the broker, so that the database stays small."""
RESTORES, ROWS = "delivery_restore", "delivery_restored"
STAGING, STAGED = "staging", "staged"
STAGED_COLUMNS = (
    *("channel_id", "producer_id", "event_type", "priority", "ordering_key", "idempotency_key"),
    *("content_type", "headers", "body_bytes", "accepted_at", "due_at", "expires_at"),
    *("consumer_count", "version", "body", "body_key_id", "is_first"),
)
INSERT = (
    f"INSERT INTO {ROWS} (restore_id, message_id, consumer_id, {', '.join(STAGED_COLUMNS)}) "
    f"VALUES ({', '.join(['%s'] * (3 + len(STAGED_COLUMNS)))})"
)


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What was requested. Empty fields do not restrict."""

    consumer_id: int
    channel_id: int
    own_event_types: list[str]
    """Event types for which the consumer registered."""
    since: datetime | None
    until: datetime
    which: str
    """ALL; DEAD: with a delivery to the consumer, but never delivered; MISSING: without a
    delivery."""
    event_types: list[str]
    ordering_keys: list[str]
    keys: list[int]

    def window(self) -> tuple[datetime | None, datetime]:
        """The range to read; a few named messages need only their own."""
        if not self.keys:
            return self.since, self.until
        a_ms = timedelta(milliseconds=1)
        first, last = tables.created_at(min(self.keys)), tables.created_at(max(self.keys)) + a_ms
        return max(self.since or first, first), min(self.until, last)


@dataclass(frozen=True, slots=True)
class SelectionCount:
    """The result of a selection."""

    messages: int
    bytes: int
    first: datetime | None
    last: datetime | None
    without_body: int
    """Messages whose bodies are neither in the tables nor in the lake."""
    key_ids: list[str]
    """Ids of the keys that encrypted their bodies."""


class Selection:
    """The messages of one replay."""

    def __init__(self, datasets: Datasets, wanted: ReplayRequest, now: datetime) -> None:
        self._datasets = datasets
        self._wanted = wanted
        self._now = now

    @cached_property
    def messages(self) -> DataFrame:
        """Each message once, with its columns and ``is_first``: it never had a delivery."""
        wanted = self._wanted
        since, until = wanted.window()
        rows = self._datasets.messages(since, until, MESSAGE_COLUMNS)
        rows = rows.where(
            (f.col("channel_id") == wanted.channel_id) & (f.col("state") == "dispatched")
        )
        rows = rows.where(f.col("expires_at").isNull() | (f.col("expires_at") > f.lit(self._now)))
        if wanted.event_types:
            rows = rows.where(_of_types(wanted.event_types))
        if wanted.ordering_keys:
            rows = rows.where(f.col("ordering_key").isin(wanted.ordering_keys))
        if wanted.keys:
            rows = rows.where(f.col("id").isin(wanted.keys))
        rows = rows.dropDuplicates(["id"]).join(self._deliveries(), "id", "left")
        delivery_count = f.coalesce("made", f.lit(0))
        rows = rows.where(f.coalesce("is_under_way", f.lit(False)) == f.lit(False))
        if wanted.which == DEAD:
            rows = rows.where((delivery_count > 0) & ~f.col("delivered"))
        elif wanted.which == MISSING:
            rows = rows.where(delivery_count == 0)
        rows = rows.where((delivery_count > 0) | _of_types(wanted.own_event_types))
        rows = rows.select(*MESSAGE_COLUMNS, (delivery_count == 0).alias("is_first"))
        # Persisted, since it is counted, divided and read.
        return rows.persist(StorageLevel.DISK_ONLY)

    def unpersist(self) -> None:
        """Release the disk space."""
        if "messages" in self.__dict__:
            self.messages.unpersist()

    def with_bodies(self, after: int) -> DataFrame:
        """Add the bodies in the lake, after a given key."""
        rows = self.messages.where(f.col("id") > after)
        bodies = self._datasets.bodies(*self._wanted.window())
        bodies = bodies.join(rows.select("id"), "id", "left_semi").dropDuplicates(["id"])
        return rows.join(bodies, "id", "left")

    def count(self) -> SelectionCount:
        """Count exactly, as of now."""
        since, until = self._wanted.window()
        low = tables.first_key(since) if since else 0
        here = self._datasets.table_keys(tables.MESSAGES, low, tables.first_key(until))
        rows = self.with_bodies(-1).join(here.withColumn("here", f.lit(True)), "id", "left")
        lacks_body = f.col("body").isNull() & f.col("here").isNull()
        row = rows.agg(
            f.count("*").alias("messages"),
            f.coalesce(f.sum("body_bytes"), f.lit(0)).alias("bytes"),
            f.min("accepted_at").alias("first"),
            f.max("accepted_at").alias("last"),
            f.count(f.when(lacks_body, 1)).alias("without_body"),
            f.collect_set(f.when(f.col("body").isNotNull(), f.col("body_key_id"))).alias("key_ids"),
        ).first()
        assert row is not None
        values: dict[str, Any] = row.asDict()
        values["key_ids"] = sorted(filter(None, values["key_ids"]))
        return SelectionCount(**values)

    def _deliveries(self) -> DataFrame:
        since, _ = self._wanted.window()
        rows = self._datasets.deliveries(
            since and since - SKEW, self._now + NOW_MARGIN, ["message_id", "consumer_id", "state"]
        )
        rows = rows.where(f.col("consumer_id") == self._wanted.consumer_id)
        state = f.col("state")
        return rows.groupBy(f.col("message_id").alias("id")).agg(
            f.count("*").alias("made"),
            f.max(state == "delivered").alias("delivered"),
            f.max(state.isin(*UNDER_WAY)).alias("is_under_way"),
        )


class ReplayStopped(Exception):
    """A person stopped the replay in the console."""


@dataclass(slots=True)
class RestoreProgress:
    """Progress of a restore."""

    state: str
    error: str
    matched: int
    staged: int
    queued: int
    skipped: int
    brought_to: int

    @property
    def waiting(self) -> int:
        """Rows staged and not yet inserted."""
        return self.staged - self.queued - self.skipped


@dataclass(frozen=True, slots=True)
class Restore:
    """The row of one restore."""

    id: int
    consumer_id: int
    options: dict[str, Any]

    def progress(self, database: Database) -> RestoreProgress:
        """Return its present state. Raises JobError and ReplayStopped when the broker ended it."""
        (row,) = database.read(
            "SELECT state, error, matched_count, staged_count, queued_count, skipped_count, "
            f"brought_to FROM {RESTORES} WHERE id = %s",
            [self.id],
        )
        progress = RestoreProgress(*row)
        if progress.state == "refused":
            raise JobError(progress.error)
        if progress.state == "cancelled":
            raise ReplayStopped
        return progress

    def plan(self, database: Database, matched: int, key_ids: list[str]) -> None:
        """Store what the replay selects."""
        database.execute(
            f"UPDATE {RESTORES} SET matched_count = staged_count + %s, key_ids = %s WHERE id = %s",
            [matched, json.dumps(key_ids), self.id],
        )

    def stage(self, context: Context, rows: list[dict[str, Any]]) -> None:
        """Stage rows in the order of their keys, with the position. Raises as ``progress`` does."""
        database = context.database
        values = [
            (self.id, row["id"], self.consumer_id, *(_plain(row[name]) for name in STAGED_COLUMNS))
            for row in rows
        ]
        with database.transaction():
            context.run.require_lock(database)
            # First, since the broker inserts rows under the same lock.
            moved = database.execute(
                f"UPDATE {RESTORES} SET brought_to = %s, staged_count = staged_count + %s "
                f"WHERE id = %s AND state = '{STAGING}' AND brought_to < %s",
                [rows[-1]["id"], len(rows), self.id, rows[0]["id"]],
            )
            if moved:
                database.execute_many(INSERT, values)
        if not moved:
            self.progress(database)
            raise AssertionError("rows were to be brought twice")

    def end(self, context: Context, state: str) -> None:
        """Record that all rows are staged, or that no more will be."""
        database = context.database
        with database.transaction():
            context.run.require_lock(database)
            finished = database.now() if state == "cancelled" else None
            database.execute(
                f"UPDATE {RESTORES} SET state = %s, finished_at = %s "
                f"WHERE id = %s AND state IN ('{STAGING}', '{STAGED}')",
                [state, finished, self.id],
            )

    def discard(self, database: Database) -> None:
        """Delete rows that were staged and not inserted."""
        while True:
            keys = database.read(
                f"SELECT id FROM {ROWS} WHERE restore_id = %s LIMIT {BATCH_ROWS}", [self.id]
            )
            if not keys:
                return
            listed = ", ".join(str(key) for (key,) in keys)
            database.execute(f"DELETE FROM {ROWS} WHERE id IN ({listed})")


def begin_restore(context: Context, consumer_id: int, options: dict[str, Any]) -> Restore:
    """Create a restore, or continue an interrupted one for the same request.

    ``options["asked"]`` is the request; its absolute times are those of the first run.
    """
    database, run = context.database, context.run
    with database.transaction():
        run.require_lock(database)
        unfinished = _unfinished(database, consumer_id, options["asked"])
        if unfinished is not None:
            key, stored = unfinished
            database.execute(f"UPDATE {RESTORES} SET run_id = %s WHERE id = %s", [run.id, key])
            return Restore(key, consumer_id, stored)
        who = database.read("SELECT requested_by FROM delivery_pipelinerun WHERE id = %s", [run.id])
        key = database.insert(
            f"INSERT INTO {RESTORES} (run_id, consumer_id, options, state, requested_by, reason, "
            "rate_per_second, key_ids, matched_count, staged_count, queued_count, skipped_count, "
            "brought_to, low, high, first_key, last_key, error, created_at) "
            f"VALUES (%s, %s, %s, '{STAGING}', %s, %s, %s, '[]', {', '.join('0' * 9)}, '', %s)",
            [
                *(run.id, consumer_id, json.dumps(options), who[0][0]),
                *(options.get("reason") or "", options.get("rate"), database.now()),
            ],
        )
    return Restore(key, consumer_id, options)


def _of_types(patterns: list[str]) -> Column:
    """Whether one of the patterns matches an event type; an empty list matches all."""
    condition = f.lit(not patterns)
    kind = f.col("event_type")
    for pattern in patterns:
        if pattern == "*":
            return f.lit(True)
        condition |= kind.startswith(pattern[:-1]) if pattern.endswith(".*") else kind == pattern
    return condition


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def _unfinished(
    database: Database, consumer_id: int, request: dict[str, Any]
) -> tuple[int, dict[str, Any]] | None:
    """Return the last restore of the same request, unless its run saw its end.

    The broker may have finished it after the run was killed: that still serves the same request.
    """
    for key, stored, state, run_state in database.read(
        f"SELECT r.id, r.options, r.state, p.state FROM {RESTORES} r "
        "LEFT JOIN delivery_pipelinerun p ON p.id = r.run_id WHERE r.consumer_id = %s "
        f"AND r.state IN ('{STAGING}', '{STAGED}', 'finished') ORDER BY r.id DESC",
        [consumer_id],
    ):
        options = json.loads(stored)
        if options.get("asked") == request:
            is_open = state != "finished" or run_state in ("running", "failed")
            return (int(key), options) if is_open else None
    return None
