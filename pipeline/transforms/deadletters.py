"""Read dead letters with their last response, their signature and the consumer's history."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.broker import tables
from pipeline.contract.outcomes import ARRIVED
from pipeline.core import encryption
from pipeline.lake.datasets import Frames
from pipeline.transforms import shapes

MAX_EXCERPT_LENGTH = 1000
"""Bytes of a response that are read: more than a shape can hold."""
AHEAD = timedelta(days=1)
"""Attempts need no high watermark: a dead delivery commits together with its last attempt."""
HOSTS = "consumer_id bigint, host string"
BEGINNINGS = "signature string, consumer_id bigint, began_at timestamp"
FILTERS = (
    "signature string, consumer_id bigint, outcome string, status_code int, "
    "accepted_from timestamp, accepted_to timestamp"
)


def signed(
    spark: SparkSession,
    frames: Frames,
    hosts: Sequence[tuple[int, str]],
    since: datetime,
    until: datetime,
    *,
    now: datetime,
    has_lake: bool,
) -> DataFrame:
    """Dead deliveries created in that time, one row each.

    Beside their columns: host, signature, shape, ``is_here`` (in the broker's tables, not only in
    the lake), ``is_over`` (expired) and ``failed_at``, its first attempt.
    """
    dead = frames.deliveries(
        since,
        until,
        [
            *("id", "consumer_id", "state", "outcome", "status_code"),
            *("accepted_at", "finished_at", "expires_at"),
        ],
    )
    dead = dead.where(f.col("state") == "dead").drop("state")
    dead = dead.withColumn("is_over", f.coalesce(f.col("expires_at") <= f.lit(now), f.lit(False)))
    dead = dead.drop("expires_at").withColumn("is_here", f.lit(True))
    if has_lake:
        low, high = tables.first_key(since), tables.first_key(until)
        here = frames.live(tables.DELIVERIES, low, high, ["id"]).withColumn("found", f.lit(True))
        dead = dead.drop("is_here").join(here, "id", "left")
        dead = dead.withColumn("is_here", f.col("found").isNotNull()).drop("found")
    rows = dead.join(_answers(frames, since, now + AHEAD), "id", "left")
    rows = rows.join(f.broadcast(spark.createDataFrame(list(hosts), HOSTS)), "consumer_id", "left")
    kept = [field for field in rows.schema.fields if field.name not in shapes.READ]
    added = [StructField(name, StringType()) for name in shapes.ADDED]
    return rows.mapInArrow(shapes.sign, StructType([*kept, *added]))


def _answers(frames: Frames, since: datetime, until: datetime) -> DataFrame:
    """For each attempted delivery: its first attempt's time, and its last attempt's result."""
    attempts = frames.attempts(
        since, until, ["delivery_id", "number", "started_at", "error", "answer_excerpt"]
    )
    excerpt = f.col("answer_excerpt")
    # An encrypted response decrypts only as a whole.
    whole = f.substring(excerpt, 1, 1) == f.lit(bytearray(encryption.ENCRYPTED))
    cut = f.when(whole, excerpt).otherwise(f.substring(excerpt, 1, MAX_EXCERPT_LENGTH))
    attempts = attempts.withColumn("answer_excerpt", cut)
    return attempts.groupBy(f.col("delivery_id").alias("id")).agg(
        f.min("started_at").alias("failed_at"),
        f.max("number").alias("number"),
        f.max_by("error", "number").alias("error"),
        f.max_by("answer_excerpt", "number").alias("excerpt"),
    )


def kinds(rows: DataFrame, most: int) -> DataFrame:
    """Signature and number of the most frequent groups."""
    counted = rows.groupBy("signature").agg(f.count("*").alias("dead_count"))
    return counted.orderBy(f.desc("dead_count"), "signature").limit(most)


def groups(rows: DataFrame, wanted: DataFrame) -> DataFrame:
    """The requested groups, each by consumer."""
    here, over = f.col("is_here"), f.col("is_over")
    sendable = f.when(here & ~over, f.col("accepted_at"))
    return (
        rows.join(f.broadcast(wanted.select("signature")), "signature")
        .groupBy("signature", "consumer_id")
        .agg(
            f.first("outcome").alias("outcome"),
            f.first("status_code").alias("status_code"),
            f.first("host").alias("host"),
            f.first("shape").alias("shape"),
            f.count("*").alias("dead_count"),
            f.sum((~here).cast("long")).alias("archived_count"),
            f.sum((here & over).cast("long")).alias("expired_count"),
            f.min("finished_at").alias("first_seen_at"),
            f.max("finished_at").alias("last_seen_at"),
            f.min(f.coalesce("failed_at", "finished_at")).alias("began_at"),
            f.min(sendable).alias("accepted_from"),
            f.max(sendable).alias("accepted_to"),
            f.max(f.struct(here, "finished_at", "id")).getField("id").alias("sample_id"),
        )
    )


def matches(spark: SparkSession, rows: DataFrame, filters: Sequence[tuple[Any, ...]]) -> DataFrame:
    """Count the dead letters that each replay filter takes, of any group."""
    wanted = f.broadcast(spark.createDataFrame(list(filters), FILTERS)).alias("w")
    taken = rows.where(f.col("is_here") & ~f.col("is_over")).alias("r")
    condition = (
        (f.col("r.consumer_id") == f.col("w.consumer_id"))
        & (f.col("r.outcome") == f.col("w.outcome"))
        & (
            f.col("w.status_code").isNull()
            | (f.col("r.status_code").eqNullSafe(f.col("w.status_code")))
        )
        & f.col("r.accepted_at").between(f.col("w.accepted_from"), f.col("w.accepted_to"))
    )
    joined = taken.join(wanted, condition)
    return joined.groupBy("w.signature", "w.consumer_id").agg(f.count("*").alias("matches"))


def before(
    spark: SparkSession,
    frames: Frames,
    beginnings: Sequence[tuple[Any, ...]],
    since: datetime,
    until: datetime,
) -> DataFrame:
    """The history of each onset's consumer until then."""
    wanted = f.broadcast(spark.createDataFrame(list(beginnings), BEGINNINGS))
    attempts = frames.attempts(
        since, until, ["id", "consumer_id", "started_at", "outcome", "status_code"]
    )
    joined = attempts.join(wanted, "consumer_id").where(f.col("started_at") < f.col("began_at"))
    arrived = f.col("outcome").isin(*ARRIVED)
    return joined.groupBy("signature").agg(
        f.sum(arrived.cast("long")).alias("arrived_count"),
        f.min("started_at").alias("since"),
        f.max(f.struct("started_at", "id", "outcome", "status_code")).alias("last"),
    )


def died_before(
    spark: SparkSession, rows: DataFrame, beginnings: Sequence[tuple[Any, ...]]
) -> DataFrame:
    """The last dead letter of each onset's consumer until then."""
    wanted = spark.createDataFrame(list(beginnings), BEGINNINGS)
    wanted = f.broadcast(wanted.withColumnRenamed("signature", "kind"))
    joined = rows.join(wanted, "consumer_id").where(f.col("finished_at") < f.col("began_at"))
    return joined.groupBy("kind").agg(f.max("finished_at").alias("last_dead_at"))
