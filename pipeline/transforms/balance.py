"""Compare expected with actual rows, over the lake and the broker's tables together.

Each table is joined once, by the key that relates it to the next one. Nothing is joined row by row
with the consumers, however many a message has.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, reduce

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from pipeline.broker import source, tables
from pipeline.broker.directory import BEING_DELETED, Parties
from pipeline.lake.datasets import Frames
from pipeline.transforms import recheck
from pipeline.transforms.recheck import SCHEMA

SKEW = timedelta(minutes=10)
"""A delivery's key may be so much older than its message's, since another host generated it."""
RANGES = 8
"""Ranges of a query of the tables."""
AHEAD = timedelta(days=1)
"""Deliveries of the examined messages may be as recent as now."""
WANTS = """
    size(p.event_types) = 0 OR exists(p.event_types, it -> it = '*'
    OR it = event_type AND event_type <> ''
    OR endswith(it, '.*') AND startswith(event_type, left(it, length(it) - 1)))
"""
"""Whether a consumer's filter lets an event type through (channels_app/core/names.py)."""
LACKING = f"""
    CASE WHEN known AND state = 'dispatched' AND strict AND parties IS NOT NULL THEN array_except(
        transform(filter(parties, p -> p.since <= key AND ({WANTS})), p -> p.id),
        coalesce(had, CAST(array() AS array<bigint>))
    ) ELSE CAST(array() AS array<bigint>) END
"""
ASKED = """coalesce(exists(spans, s -> id BETWEEN s.first AND s.last
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


class Balance:
    """One comparison. Intermediate results are on the disks of Spark's workers."""

    def __init__(self, spark: SparkSession, frames: Frames, parties: Parties, scope: Scope) -> None:
        self._spark = spark
        self._frames = frames
        self._parties = parties
        self._scope = scope
        self._since = tables.made_at(scope.low) if scope.low else None
        self._until = tables.made_at(scope.high)
        self._oldest = frames.oldest(tables.MESSAGES)
        self._homes = f.broadcast(parties.homes(spark))
        self._key_rows = f.broadcast(parties.key_rows(spark))

    def forget(self) -> None:
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
        until = self._scope.now + AHEAD
        names = ["id", "message_id", "consumer_id", "channel_id", "state", "attempt_count"]
        rows = self._of_messages(self._frames.deliveries(since, until, [*names, "version"]))
        rows = rows.groupBy("id").agg(
            f.count("*").alias("copies"), f.max(f.struct("version", *names[1:])).alias("row")
        )
        rows = rows.select("id", "copies", "row.*")
        names = ["id", "delivery_id", "number", "message_id"]
        attempts = self._of_messages(self._frames.attempts(since, until, names))
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
        found = self._frames.messages(self._since, self._until, ["id", "version", *names])
        found = found.groupBy("id").agg(
            f.count("*").alias("copies"), f.max(f.struct("version", *names)).alias("row")
        )
        found = found.select("id", "copies", "row.*")
        owned = self.pairs.groupBy("message_id").agg(
            # A replay from the lake, or a backfill from it, is not fan-out.
            f.count(f.when(f.col("made") > f.col("asked"), 1)).alias("fanned"),
            f.collect_list("consumer_id").alias("had"),
            f.sum("made").alias("made"),
            f.min("low_channel").alias("low_channel"),
            f.max("high_channel").alias("high_channel"),
        )
        rows = found.join(owned, found["id"] == owned["message_id"], "full_outer")
        rows = rows.join(self._key_rows, "channel_id", "left")
        key = f.coalesce("id", "message_id")
        mark = f.coalesce("mark", f.lit(0))
        strict = (key > mark) | ((key >= self._scope.whole_from) & (mark < BEING_DELETED))
        rows = rows.withColumns(
            {
                "key": key,
                "known": f.col("id").isNotNull(),
                "strict": strict,
                "fanned": f.coalesce("fanned", f.lit(0)),
                "made": f.coalesce("made", f.lit(0)),
            }
        )
        rows = rows.withColumn("lacking", f.expr(LACKING)).drop("parties", "had", "id")
        return rows.persist(StorageLevel.DISK_ONLY)

    @property
    def pairs(self) -> DataFrame:
        """Deliveries grouped by message and consumer."""
        rows = self.deliveries.where("id IS NOT NULL")
        if self._parties.spans:
            spans = f.broadcast(self._parties.restores(self._spark))
            rows = rows.join(spans, "consumer_id", "left")
            rows = rows.withColumn("was_asked", f.expr(ASKED).cast("int"))
        else:
            rows = rows.withColumn("was_asked", f.lit(0))
        return rows.groupBy("message_id", "consumer_id").agg(
            f.count("*").alias("made"),
            f.sum("was_asked").alias("asked"),
            f.min("channel_id").alias("low_channel"),
            f.max("channel_id").alias("high_channel"),
        )

    def findings(self) -> DataFrame:
        """Return suspected discrepancies, as rows of recheck.SCHEMA."""
        some = [*self._of_deliveries(), *self._of_fan_out(), self._of_tables()]
        return reduce(DataFrame.unionByName, some)

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
        yield _note(rows.where(off), "attempts", "attempts", "dlv", "id", place, owner)
        twice = (f.col("copies") > 1) | (f.col("attempt_rows") > f.col("numbers"))
        yield _note(rows.where(twice), "doubled", "doubled", "dlv", "id", place, owner)
        housed = rows.join(self._homes, "consumer_id", "left")
        strangers = housed.where("home IS NULL")
        yield _note(strangers, "consumerless", "orphans", "dlv", "id", (), owner)
        astray = housed.where("home <> channel_id")
        yield _note(astray, "unasked", "unasked", "dlv", "id", place, owner)
        pairs = self.pairs.where("made > 1 + asked")
        pairs = pairs.withColumn("channel_id", f.col("low_channel"))
        yield _note(pairs, "doubled", "doubled", "msg", owner, place, owner)
        childless = self.deliveries.where("id IS NULL")
        yield _note(childless, "childless", "orphans", "dlv", "delivery_id", (), "attempts_message")

    def _of_fan_out(self) -> Iterator[DataFrame]:
        rows, place = self.messages, ("channel_id",)
        known = rows.where("known")
        off = "consumer_count < fanned OR consumer_count > fanned AND strict"
        yield _note(known.where(off), "fan_out", "fan_out", "msg", "key", place, "key")
        yield _note(
            known.where("copies > 1"), "doubled_message", "doubled", "msg", "key", place, "key"
        )
        astray = known.where("low_channel <> channel_id OR high_channel <> channel_id")
        yield _note(astray, "unasked", "unasked", "msg", "key", place, "key")
        late = known.where((f.col("state") == "accepted") & (f.col("accepted_at") < self._before))
        yield _note(late, "undispatched", "undispatched", "msg", "key", place, "key")
        nowhere = known.where("mark IS NULL")
        yield _note(nowhere, "channelless", "orphans", "msg", "key", (), "key")
        lacking = known.where("size(lacking) > 0")
        lacking = lacking.withColumn("consumer_id", f.explode("lacking"))
        of_one = ("channel_id", "consumer_id")
        yield _note(lacking, "missing", "missing", "msg", "key", of_one, "key")
        unknown = rows.where("NOT known").select(f.col("key").alias("message_id"))
        lost = self.deliveries.where("id IS NOT NULL").join(unknown, "message_id", "left_semi")
        lost = lost.join(self._key_rows.select("channel_id", "mark"), "channel_id", "left")
        for kind, of in (("messageless", "NOT NULL"), ("messageless_live", "NULL")):
            some = lost.where(f"mark IS {of}")
            yield _note(some, kind, "orphans", "dlv", "id", (), "message_id")

    def _of_tables(self) -> DataFrame:
        """Query the broker's tables in ranges of their keys."""
        low, high = self._scope.low, self._scope.high
        # Few rows are before the oldest message; after it they are about evenly spread.
        oldest = min(max(low, self._oldest), high)
        parts = [*source.split(low, oldest, 1), *source.split(oldest, high, RANGES)]
        whole = list(source.split(low, high, 1))
        ranges = [
            (kind, part.low, part.high)
            for kind in recheck.RANGES
            for part in (whole if kind == "lost" else parts)
        ]
        schema = from_arrow_schema(recheck.RANGE)
        asked = self._spark.createDataFrame(ranges, schema).repartition(RANGES)
        found = asked.mapInArrow(recheck.ask, from_arrow_schema(SCHEMA))
        known = self.messages.where("known").select("key").withColumn("kind", f.lit("lost"))
        found = found.join(known, ["kind", "key"], "left_anti")
        taken = (f.col("key") <= self._parties.mark) & (f.col("key") < self._scope.whole_from)
        return found.where(~((f.col("kind") == "lost") & taken))

    @property
    def _before(self) -> Column:
        return f.lit(self._scope.before)

    def _of_messages(self, rows: DataFrame) -> DataFrame:
        """Keep rows of the examined messages."""
        key = f.col("message_id")
        return rows.where((key >= self._scope.low) & (key < self._scope.high))


def _note(
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
    schema = from_arrow_schema(SCHEMA)
    return rows.select(
        *(value.cast(schema[column].dataType).alias(column) for column, value in columns.items())
    )
