"""Compare expected with actual rows, over the lake and the broker's tables together.

Each table is joined once, by the key that relates it to the next one. Nothing is joined row by row
with the consumers, however many a message has. An audit reads the tables one after the other while
the broker continues, so a row may only have changed in between. Executors therefore query the
tables again about suspected discrepancies, each row in one statement.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, reduce
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from pipeline.broker import executor, source, tables
from pipeline.broker.directory import DELETED_MARK, ConsumerDirectory
from pipeline.lake.datasets import Datasets

FINDING_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("prefix", pa.string()),
        ("key", pa.int64()),
        ("channel_id", pa.int64()),
        ("consumer_id", pa.int64()),
        ("owner", pa.int64()),
    ]
)
"""``kind`` names the query, ``name`` the check that people read, ``prefix`` and ``key`` the row,
``owner`` the key whose hour is reported."""
QUERY_KEYS = 500
"""Keys of one query."""
KEY_SCHEMA = pa.schema([("id", pa.int64())])
IN_FLIGHT = "(d.state = 'in_flight')"
SENDABLE = "'queued', 'in_flight', 'awaiting_ack', 'dead'"
MESSAGES, DELIVERIES = "channels_app_message m", "delivery_delivery d"
CORRECT_QUERIES = {
    "attempts": (
        f"SELECT d.id FROM {DELIVERIES} WHERE d.id IN ({{keys}}) "
        f"AND d.attempt_count = {IN_FLIGHT} + "
        "(SELECT COUNT(*) FROM delivery_attempt a WHERE a.delivery_id = d.id) "
        "AND NOT EXISTS (SELECT 1 FROM delivery_attempt a WHERE a.delivery_id = d.id "
        f"AND (a.number = 0 OR a.number + {IN_FLIGHT} > d.attempt_count))"
    ),
    "fan_out": (
        f"SELECT m.id FROM {MESSAGES} WHERE m.id IN ({{keys}}) AND m.consumer_count = "
        f"(SELECT COUNT(*) FROM {DELIVERIES} WHERE d.message_id = m.id)"
    ),
    "missing": (
        f"SELECT m.id FROM {MESSAGES} WHERE m.id IN ({{keys}}) AND (m.state <> 'dispatched' OR "
        f"EXISTS (SELECT 1 FROM {DELIVERIES} WHERE d.message_id = m.id "
        "AND d.consumer_id = {consumer:d}))"
    ),
    "messageless": (
        f"SELECT d.id FROM {DELIVERIES} JOIN {MESSAGES} ON m.id = d.message_id "
        "WHERE d.id IN ({keys})"
    ),
    "doubled_message": (
        "SELECT r.message_id AS id FROM delivery_restoredmessage r WHERE r.message_id IN ({keys})"
    ),
}
"""By kind: the query for correct keys, whose rows were only changing. Rows that are only in the
lake remain findings."""
WRONG_QUERIES = {
    "undispatched": (
        f"SELECT m.id FROM {MESSAGES} WHERE m.id IN ({{keys}}) AND m.state = 'accepted'"
    ),
    "channelless": f"SELECT m.id FROM {MESSAGES} WHERE m.id IN ({{keys}})",
    "consumerless": f"SELECT d.id FROM {DELIVERIES} WHERE d.id IN ({{keys}})",
    "messageless_live": (
        f"SELECT d.id FROM {DELIVERIES} WHERE d.id IN ({{keys}}) AND NOT EXISTS "
        f"(SELECT 1 FROM {MESSAGES} WHERE m.id = d.message_id)"
    ),
}
"""By kind: the query for keys that are still wrong. A deleted channel or consumer leaves its
history in the lake by design."""

RANGE_QUERIES = {
    "bodies": (
        f"SELECT m.id AS id, m.channel_id AS channel_id FROM {MESSAGES} "
        "WHERE m.id >= {low:d} AND m.id < {high:d} AND (m.state = 'accepted' OR EXISTS "
        f"(SELECT 1 FROM {DELIVERIES} WHERE d.message_id = m.id AND d.state IN ({SENDABLE}))) "
        "AND NOT EXISTS (SELECT 1 FROM channels_app_messagebody b WHERE b.message_id = m.id)"
    ),
    "attempts_alone": (
        "SELECT a.id AS id, 0 AS channel_id FROM delivery_attempt a "
        "WHERE a.id >= {low:d} AND a.id < {high:d} AND NOT EXISTS "
        f"(SELECT 1 FROM {DELIVERIES} WHERE d.id = a.delivery_id)"
    ),
    "bodies_alone": (
        "SELECT b.message_id AS id, 0 AS channel_id FROM channels_app_messagebody b "
        "WHERE b.message_id >= {low:d} AND b.message_id < {high:d} AND NOT EXISTS "
        f"(SELECT 1 FROM {MESSAGES} WHERE m.id = b.message_id)"
    ),
    "lost": (
        "SELECT r.message_id AS id, 0 AS channel_id FROM channels_app_idempotencyrecord r "
        "WHERE r.message_id >= {low:d} AND r.message_id < {high:d} AND NOT EXISTS "
        f"(SELECT 1 FROM {MESSAGES} WHERE m.id = r.message_id)"
    ),
}
"""Queries of the tables alone, each of a range of keys in one statement. Messages that are
``lost`` may still be in the lake."""
RANGE_CHECKS = {
    "bodies": ("bodies", "msg"),
    "attempts_alone": ("orphans", "att"),
    "bodies_alone": ("orphans", "msg"),
    "lost": ("lost", "msg"),
}
RANGE_SCHEMA = pa.schema([("kind", pa.string()), ("low", pa.int64()), ("high", pa.int64())])
PLACE_SCHEMA = pa.schema([("id", pa.int64()), ("channel_id", pa.int64())])

Row = dict[str, Any]

SKEW = timedelta(minutes=10)
"""A delivery's key may be so much older than its message's, since another host generated it."""
RANGE_COUNT = 8
"""Ranges of a query of the tables."""
NOW_MARGIN = timedelta(days=1)
"""Deliveries of the examined messages may be as recent as now."""
MATCHES_FILTER = """
    size(p.event_types) = 0 OR exists(p.event_types, it -> it = '*'
    OR it = event_type AND event_type <> ''
    OR endswith(it, '.*') AND startswith(event_type, left(it, length(it) - 1)))
"""
"""Whether a consumer's filter lets an event type through (channels_app/core/names.py)."""
MISSING_CONSUMERS = f"""
    CASE WHEN known AND state = 'dispatched' AND must_exist AND consumers IS NOT NULL
    THEN array_except(
        transform(filter(consumers, p -> p.since <= key AND ({MATCHES_FILTER})), p -> p.id),
        coalesce(has_delivery, CAST(array() AS array<bigint>))
    ) ELSE CAST(array() AS array<bigint>) END
"""
WAS_REPLAYED = """coalesce(exists(replays, s -> id BETWEEN s.first AND s.last
    AND message_id BETWEEN s.low AND s.high), false)"""
"""Whether a replay from the lake created this delivery."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Messages with keys from ``low`` (inclusive) up to ``high`` (exclusive)."""

    low: int
    high: int
    now: datetime
    before: datetime
    """Messages that wait since before this instant are late."""
    whole_from: int
    """From this key on rows only moved to the lake, so retention marks excuse no missing row."""


class Reconciliation:
    """One comparison. Intermediate results are on the disks of Spark's workers."""

    def __init__(
        self, spark: SparkSession, datasets: Datasets, directory: ConsumerDirectory, scope: Scope
    ) -> None:
        self._spark = spark
        self._datasets = datasets
        self._directory = directory
        self._scope = scope
        self._since = tables.created_at(scope.low) if scope.low else None
        self._until = tables.created_at(scope.high)
        self._oldest = datasets.first_key(tables.MESSAGES)
        self._consumer_channels = f.broadcast(directory.consumer_channels(spark))
        self._channels = f.broadcast(directory.channels(spark))

    def unpersist(self) -> None:
        """Release the disk space."""
        for kept in ("deliveries", "messages"):
            if kept in self.__dict__:
                self.__dict__[kept].unpersist()

    @cached_property
    def deliveries(self) -> DataFrame:
        """Deliveries with totals of their attempts, one row per key.

        A delivery that only attempts refer to has a row too (``id`` is null).
        """
        since = self._since and self._since - SKEW
        until = self._scope.now + NOW_MARGIN
        names = ["id", "message_id", "consumer_id", "channel_id", "state", "attempt_count"]
        rows = self._of_messages(self._datasets.deliveries(since, until, [*names, "version"]))
        rows = rows.groupBy("id").agg(
            f.count("*").alias("copies"), f.max(f.struct("version", *names[1:])).alias("row")
        )
        rows = rows.select("id", "copies", "row.*")
        names = ["id", "delivery_id", "number", "message_id"]
        attempts = self._of_messages(self._datasets.attempts(since, until, names))
        attempts = attempts.groupBy("delivery_id", "number").agg(
            f.count("*").alias("copies"),
            f.min("id").alias("id"),
            f.min("message_id").alias("message_id"),
        )
        attempts = attempts.groupBy("delivery_id").agg(
            f.sum("copies").alias("attempt_rows"),
            f.count("*").alias("numbers"),
            f.min("number").alias("first_number"),
            f.max("number").alias("last_number"),
            f.min("message_id").alias("attempts_message"),
        )
        whole = rows.join(attempts, rows["id"] == attempts["delivery_id"], "full_outer")
        return whole.persist(StorageLevel.DISK_ONLY)

    @cached_property
    def messages(self) -> DataFrame:
        """Messages with totals of their deliveries, one row per key.

        A message that only deliveries refer to has a row too (``known`` is false).
        """
        names = ["channel_id", "state", "event_type", "consumer_count", "accepted_at"]
        messages = self._datasets.messages(self._since, self._until, ["id", "version", *names])
        messages = messages.groupBy("id").agg(
            f.count("*").alias("copies"), f.max(f.struct("version", *names)).alias("row")
        )
        messages = messages.select("id", "copies", "row.*")
        owned = self.pairs.groupBy("message_id").agg(
            # A replay from the lake, or a backfill from it, is not fan-out.
            f.count(f.when(f.col("made") > f.col("replayed"), 1)).alias("fanned_out"),
            f.collect_list("consumer_id").alias("has_delivery"),
            f.sum("made").alias("made"),
            f.min("low_channel").alias("low_channel"),
            f.max("high_channel").alias("high_channel"),
        )
        rows = messages.join(owned, messages["id"] == owned["message_id"], "full_outer")
        rows = rows.join(self._channels, "channel_id", "left")
        key = f.coalesce("id", "message_id")
        mark = f.coalesce("mark", f.lit(0))
        must_exist = (key > mark) | ((key >= self._scope.whole_from) & (mark < DELETED_MARK))
        rows = rows.withColumns(
            {
                "key": key,
                "known": f.col("id").isNotNull(),
                "must_exist": must_exist,
                "fanned_out": f.coalesce("fanned_out", f.lit(0)),
                "made": f.coalesce("made", f.lit(0)),
            }
        )
        rows = rows.withColumn("missing_consumers", f.expr(MISSING_CONSUMERS)).drop(
            "consumers", "has_delivery", "id"
        )
        return rows.persist(StorageLevel.DISK_ONLY)

    @property
    def pairs(self) -> DataFrame:
        """Deliveries grouped by message and consumer."""
        rows = self.deliveries.where("id IS NOT NULL")
        if self._directory.replays:
            replays = f.broadcast(self._directory.replay_ranges(self._spark))
            rows = rows.join(replays, "consumer_id", "left")
            rows = rows.withColumn("was_replayed", f.expr(WAS_REPLAYED).cast("int"))
        else:
            rows = rows.withColumn("was_replayed", f.lit(0))
        return rows.groupBy("message_id", "consumer_id").agg(
            f.count("*").alias("made"),
            f.sum("was_replayed").alias("replayed"),
            f.min("channel_id").alias("low_channel"),
            f.max("channel_id").alias("high_channel"),
        )

    def findings(self) -> DataFrame:
        """Return suspected discrepancies, as rows of FINDING_SCHEMA."""
        return reduce(
            DataFrame.unionByName,
            [*self._of_deliveries(), *self._of_fan_out(), self._of_tables()],
        )

    def _of_deliveries(self) -> Iterator[DataFrame]:
        rows = self.deliveries.where("id IS NOT NULL")
        place, owner = ("channel_id", "consumer_id"), "message_id"
        in_flight = (f.col("state") == "in_flight").cast("int")
        numbers = f.coalesce("numbers", f.lit(0))
        off = (
            (f.col("attempt_count") != in_flight + numbers)
            | (f.col("first_number") == 0)
            | (f.col("last_number") + in_flight > f.col("attempt_count"))
        )
        yield _finding(rows.where(off), "attempts", "attempts", "dlv", "id", place, owner)
        twice = (f.col("copies") > 1) | (f.col("attempt_rows") > f.col("numbers"))
        yield _finding(rows.where(twice), "doubled", "doubled", "dlv", "id", place, owner)
        with_channel = rows.join(self._consumer_channels, "consumer_id", "left")
        consumerless = with_channel.where("own_channel_id IS NULL")
        yield _finding(consumerless, "consumerless", "orphans", "dlv", "id", (), owner)
        misdirected = with_channel.where("own_channel_id <> channel_id")
        yield _finding(misdirected, "unasked", "unasked", "dlv", "id", place, owner)
        pairs = self.pairs.where("made > 1 + replayed")
        pairs = pairs.withColumn("channel_id", f.col("low_channel"))
        yield _finding(pairs, "doubled", "doubled", "msg", owner, place, owner)
        childless = self.deliveries.where("id IS NULL")
        yield _finding(
            childless, "childless", "orphans", "dlv", "delivery_id", (), "attempts_message"
        )

    def _of_fan_out(self) -> Iterator[DataFrame]:
        rows, place = self.messages, ("channel_id",)
        stored = rows.where("known")
        off = "consumer_count < fanned_out OR consumer_count > fanned_out AND must_exist"
        yield _finding(stored.where(off), "fan_out", "fan_out", "msg", "key", place, "key")
        yield _finding(
            stored.where("copies > 1"), "doubled_message", "doubled", "msg", "key", place, "key"
        )
        misdirected = stored.where("low_channel <> channel_id OR high_channel <> channel_id")
        yield _finding(misdirected, "unasked", "unasked", "msg", "key", place, "key")
        late = stored.where((f.col("state") == "accepted") & (f.col("accepted_at") < self._before))
        yield _finding(late, "undispatched", "undispatched", "msg", "key", place, "key")
        nowhere = stored.where("mark IS NULL")
        yield _finding(nowhere, "channelless", "orphans", "msg", "key", (), "key")
        missing = stored.where("size(missing_consumers) > 0")
        missing = missing.withColumn("consumer_id", f.explode("missing_consumers"))
        of_one = ("channel_id", "consumer_id")
        yield _finding(missing, "missing", "missing", "msg", "key", of_one, "key")
        unknown = rows.where("NOT known").select(f.col("key").alias("message_id"))
        lost = self.deliveries.where("id IS NOT NULL").join(unknown, "message_id", "left_semi")
        lost = lost.join(self._channels.select("channel_id", "mark"), "channel_id", "left")
        for kind, of in (("messageless", "NOT NULL"), ("messageless_live", "NULL")):
            dangling = lost.where(f"mark IS {of}")
            yield _finding(dangling, kind, "orphans", "dlv", "id", (), "message_id")

    def _of_tables(self) -> DataFrame:
        """Query the broker's tables in ranges of their keys."""
        low, high = self._scope.low, self._scope.high
        # Few rows are before the oldest message; after it they are about evenly spread.
        oldest = min(max(low, self._oldest), high)
        parts = [*source.split(low, oldest, 1), *source.split(oldest, high, RANGE_COUNT)]
        whole = list(source.split(low, high, 1))
        ranges = [
            (kind, part.low, part.high)
            for kind in RANGE_QUERIES
            for part in (whole if kind == "lost" else parts)
        ]
        schema = from_arrow_schema(RANGE_SCHEMA)
        rows = self._spark.createDataFrame(ranges, schema).repartition(RANGE_COUNT)
        findings = rows.mapInArrow(query_ranges, from_arrow_schema(FINDING_SCHEMA))
        stored = self.messages.where("known").select("key").withColumn("kind", f.lit("lost"))
        findings = findings.join(stored, ["kind", "key"], "left_anti")
        taken = (f.col("key") <= self._directory.mark) & (f.col("key") < self._scope.whole_from)
        return findings.where(~((f.col("kind") == "lost") & taken))

    @property
    def _before(self) -> Column:
        return f.lit(self._scope.before)

    def _of_messages(self, rows: DataFrame) -> DataFrame:
        """Keep rows of the examined messages."""
        key = f.col("message_id")
        return rows.where((key >= self._scope.low) & (key < self._scope.high))


def query_ranges(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield discrepancies in ranges (RANGE_SCHEMA) of the tables, as rows of FINDING_SCHEMA."""
    for batch in batches:
        for row in batch.to_pylist():
            sql = RANGE_QUERIES[row["kind"]].format(low=row["low"], high=row["high"])
            name, prefix = RANGE_CHECKS[row["kind"]]
            findings = [
                {
                    "kind": row["kind"],
                    "name": name,
                    "prefix": prefix,
                    "key": place["id"],
                    "channel_id": place["channel_id"],
                    "consumer_id": 0,
                    "owner": place["id"],
                }
                for answer in executor.read(sql, PLACE_SCHEMA)
                for place in answer.to_pylist()
            ]
            if findings:
                yield pa.RecordBatch.from_pylist(findings, schema=FINDING_SCHEMA)


def recheck(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of FINDING_SCHEMA that are still wrong."""
    for batch in batches:
        rows = sorted(batch.to_pylist(), key=_query_of)
        kept = [row for _, group in groupby(rows, _query_of) for row in still_wrong(list(group))]
        if kept:
            yield pa.RecordBatch.from_pylist(kept, schema=FINDING_SCHEMA)


def still_wrong(rows: Sequence[Row]) -> list[Row]:
    """Check rows of one kind, for ``missing`` of one consumer."""
    kind, consumer = rows[0]["kind"], rows[0]["consumer_id"]
    if kind in CORRECT_QUERIES:
        correct = _query(CORRECT_QUERIES[kind], rows, consumer)
        return [row for row in rows if row["key"] not in correct]
    if kind in WRONG_QUERIES:
        wrong = _query(WRONG_QUERIES[kind], rows, consumer)
        return [row for row in rows if row["key"] in wrong]
    return list(rows)


def _finding(
    rows: DataFrame,
    kind: str,
    name: str,
    prefix: str,
    key: str,
    place: tuple[str, ...],
    owner: str,
) -> DataFrame:
    """Return discrepancies with their check, and with the channel and consumer to report."""
    columns = {
        "kind": f.lit(kind),
        "name": f.lit(name),
        "prefix": f.lit(prefix),
        "key": f.col(key),
        "channel_id": f.col("channel_id") if "channel_id" in place else f.lit(0),
        "consumer_id": f.col("consumer_id") if "consumer_id" in place else f.lit(0),
        "owner": f.col(owner),
    }
    schema = from_arrow_schema(FINDING_SCHEMA)
    return rows.select(
        *(value.cast(schema[column].dataType).alias(column) for column, value in columns.items())
    )


def _query_of(row: Row) -> tuple[str, int]:
    return row["kind"], row["consumer_id"] if row["kind"] == "missing" else 0


def _query(sql: str, rows: Sequence[Row], consumer: int) -> set[int]:
    matches: set[int] = set()
    for start in range(0, len(rows), QUERY_KEYS):
        keys = ", ".join(str(int(row["key"])) for row in rows[start : start + QUERY_KEYS])
        for batch in executor.read(sql.format(keys=keys, consumer=consumer), KEY_SCHEMA):
            matches.update(batch.column(0).to_pylist())
    return matches
