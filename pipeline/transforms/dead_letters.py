"""Read dead letters with their last response, their signature and the history of their consumer."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from pipeline import settings
from pipeline.broker import tables
from pipeline.broker.database import Database, instant
from pipeline.core import encryption, triage
from pipeline.core.encryption import DecryptionKeys
from pipeline.core.health import ARRIVED
from pipeline.core.hours import utc
from pipeline.core.triage import NEAR, AuditedChange, History, OnsetFacts, explain_onset
from pipeline.lake.datasets import Datasets

MAX_EXCERPT_LENGTH = 1000
"""Bytes of a response that are read: more than a shape can hold."""
NOW_MARGIN = timedelta(days=1)
"""Attempts need no high watermark: a dead delivery commits together with its last attempt."""
HOSTS_SCHEMA = "consumer_id bigint, host string"
ONSETS_SCHEMA = "signature string, consumer_id bigint, began_at timestamp"
FILTERS_SCHEMA = (
    "signature string, consumer_id bigint, outcome string, status_code int, "
    "accepted_from timestamp, accepted_to timestamp"
)
SIGNATURE_COLUMNS = ("signature", "shape")
RESPONSE_COLUMNS = ("number", "error", "excerpt")
"""Columns that are dropped once the shape is known."""
ENCRYPTED_SHAPE = "Sealed at rest: the page of the sample shows it."
"""Shown instead of an encrypted response's shape."""
MAX_EXPLAINED = 200
"""Groups, the first ones, whose onset is explained."""
MAX_CHANGES = 20
"""Changes before an onset that are read of a consumer, and of its channel."""
Row = dict[str, Any]


def read(
    spark: SparkSession,
    datasets: Datasets,
    hosts: Sequence[tuple[int, str]],
    since: datetime,
    until: datetime,
    *,
    now: datetime,
    has_lake: bool,
) -> DataFrame:
    """Dead deliveries created in that time, one row each.

    Beside their columns: host, signature, shape, ``is_in_tables`` (not only in the lake),
    ``is_expired``, and ``failed_at``, the time of its first attempt.
    """
    dead = datasets.deliveries(
        since,
        until,
        [
            *("id", "consumer_id", "state", "outcome", "status_code"),
            *("accepted_at", "finished_at", "expires_at"),
        ],
    )
    dead = dead.where(f.col("state") == "dead").drop("state")
    dead = dead.withColumn(
        "is_expired", f.coalesce(f.col("expires_at") <= f.lit(now), f.lit(False))
    )
    dead = dead.drop("expires_at").withColumn("is_in_tables", f.lit(True))
    if has_lake:
        low, high = tables.first_key(since), tables.first_key(until)
        here = datasets.table_rows(tables.DELIVERIES, low, high, ["id"]).withColumn(
            "found", f.lit(True)
        )
        dead = dead.drop("is_in_tables").join(here, "id", "left")
        dead = dead.withColumn("is_in_tables", f.col("found").isNotNull()).drop("found")
    rows = dead.join(_responses(datasets, since, now + NOW_MARGIN), "id", "left")
    rows = rows.join(
        f.broadcast(spark.createDataFrame(list(hosts), HOSTS_SCHEMA)), "consumer_id", "left"
    )
    kept = [field for field in rows.schema.fields if field.name not in RESPONSE_COLUMNS]
    added = [StructField(name, StringType()) for name in SIGNATURE_COLUMNS]
    return rows.mapInArrow(sign, StructType([*kept, *added]))


def most_frequent(rows: DataFrame, most: int) -> DataFrame:
    """Signature and number of the most frequent groups."""
    counted = rows.groupBy("signature").agg(f.count("*").alias("dead_count"))
    return counted.orderBy(f.desc("dead_count"), "signature").limit(most)


def groups(rows: DataFrame, wanted: DataFrame) -> DataFrame:
    """The requested groups, each by consumer."""
    in_tables, expired = f.col("is_in_tables"), f.col("is_expired")
    sendable = f.when(in_tables & ~expired, f.col("accepted_at"))
    return (
        rows.join(f.broadcast(wanted.select("signature")), "signature")
        .groupBy("signature", "consumer_id")
        .agg(
            f.first("outcome").alias("outcome"),
            f.first("status_code").alias("status_code"),
            f.first("host").alias("host"),
            f.first("shape").alias("shape"),
            f.count("*").alias("dead_count"),
            f.sum((~in_tables).cast("long")).alias("archived_count"),
            f.sum((in_tables & expired).cast("long")).alias("expired_count"),
            f.min("finished_at").alias("first_seen_at"),
            f.max("finished_at").alias("last_seen_at"),
            f.min(f.coalesce("failed_at", "finished_at")).alias("began_at"),
            f.min(sendable).alias("accepted_from"),
            f.max(sendable).alias("accepted_to"),
            f.max(f.struct(in_tables, "finished_at", "id")).getField("id").alias("sample_id"),
        )
    )


def count_matches(
    spark: SparkSession, rows: DataFrame, filters: Sequence[tuple[Any, ...]]
) -> DataFrame:
    """Count the dead letters that each replay filter takes, of any group."""
    wanted = f.broadcast(spark.createDataFrame(list(filters), FILTERS_SCHEMA)).alias("w")
    taken = rows.where(f.col("is_in_tables") & ~f.col("is_expired")).alias("r")
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


def histories(
    spark: SparkSession,
    datasets: Datasets,
    onsets: Sequence[tuple[Any, ...]],
    since: datetime,
    until: datetime,
) -> DataFrame:
    """The history of each onset's consumer until then."""
    wanted = f.broadcast(spark.createDataFrame(list(onsets), ONSETS_SCHEMA))
    attempts = datasets.attempts(
        since, until, ["id", "consumer_id", "started_at", "outcome", "status_code"]
    )
    joined = attempts.join(wanted, "consumer_id").where(f.col("started_at") < f.col("began_at"))
    arrived = f.col("outcome").isin(*ARRIVED)
    return joined.groupBy("signature").agg(
        f.sum(arrived.cast("long")).alias("arrived_count"),
        f.min("started_at").alias("since"),
        f.max(f.struct("started_at", "id", "outcome", "status_code")).alias("last"),
    )


def last_dead_letters(
    spark: SparkSession, rows: DataFrame, onsets: Sequence[tuple[Any, ...]]
) -> DataFrame:
    """The last dead letter of each onset's consumer until then."""
    wanted = spark.createDataFrame(list(onsets), ONSETS_SCHEMA)
    wanted = f.broadcast(wanted.withColumnRenamed("signature", "kind"))
    joined = rows.join(wanted, "consumer_id").where(f.col("finished_at") < f.col("began_at"))
    return joined.groupBy("kind").agg(f.max("finished_at").alias("last_dead_at"))


def sign(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield, on executors, the same rows with signature and shape instead of the response."""
    keys = DecryptionKeys(settings.encryption_keys())
    for batch in batches:
        rows = batch.select(["id", "outcome", "status_code", "host", *RESPONSE_COLUMNS]).to_pylist()
        signatures = [_signed(row, keys) for row in rows]
        signed = batch.drop_columns(list(RESPONSE_COLUMNS))
        for place, name in enumerate(SIGNATURE_COLUMNS):
            values = pa.array([values[place] for values in signatures], pa.string())
            signed = signed.append_column(name, values)
        yield signed


def explain_onsets(
    spark: SparkSession,
    datasets: Datasets,
    database: Database,
    report: Callable[[str, int, int], None],
    rows: DataFrame,
    clusters: list[Row],
    names: Mapping[int, str],
    window: tuple[datetime, datetime],
) -> None:
    """Explain the onset of the first groups."""
    first = clusters[:MAX_EXPLAINED]
    if not first:
        return
    onsets = [
        (cluster["signature"], cluster["first_consumer"], cluster["began_at"]) for cluster in first
    ]
    before = histories(spark, datasets, onsets, *window)
    past = {row["signature"]: row for row in before.toArrow().to_pylist()}
    died = {
        row["kind"]: utc(row["last_dead_at"])
        for row in last_dead_letters(spark, rows, onsets).toArrow().to_pylist()
    }
    failing = _failing_since(clusters)
    for place, cluster in enumerate(first):
        report("finding changes", place, len(first))
        whose = cluster["first_consumer"]
        name = names.get(whose, str(whose))
        began = utc(cluster["began_at"])
        same_host = failing.get(cluster["host"], {}) if cluster["host"] else {}
        cluster["story"] = explain_onset(
            OnsetFacts(
                consumer=name,
                began_at=began,
                changes=_changes(database, name, began),
                neighbours=sorted(
                    (neighbour, at) for neighbour, at in same_host.items() if neighbour != name
                ),
                before=_before(past.get(cluster["signature"]), died.get(cluster["signature"])),
            )
        )


def _responses(datasets: Datasets, since: datetime, until: datetime) -> DataFrame:
    """For each attempted delivery: its first attempt's time, and its last attempt's result."""
    attempts = datasets.attempts(
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


def _signed(row: dict[str, Any], keys: DecryptionKeys) -> tuple[str, str]:
    """Return signature and shape. Encrypted responses get a keyed signature and no shape."""
    error, excerpt = row["error"] or "", bytes(row["excerpt"] or b"")
    kind = row["outcome"], row["status_code"], row["host"] or ""
    if not excerpt.startswith(encryption.ENCRYPTED):
        excerpt = excerpt.removeprefix(encryption.PLAIN)
        shape = triage.shape(triage.response_text(error, excerpt))
        return triage.signature(*kind, shape), shape
    answer = keys.decrypt_response(row["id"], row["number"], error, excerpt)
    shape = triage.shape(triage.response_text(*answer)) if answer else ENCRYPTED_SHAPE
    return triage.signature(*kind, shape, keys.mac_key), ENCRYPTED_SHAPE


def _failing_since(clusters: Iterable[Row]) -> dict[str, dict[str, datetime]]:
    """Return by host when each of its consumers began to fail in any way."""
    hosts: dict[str, dict[str, datetime]] = defaultdict(dict)
    for cluster in clusters:
        consumers = hosts[cluster["host"]]
        for part in cluster["consumers"]:
            at = datetime.fromisoformat(part["failing_since"])
            consumers[part["name"]] = min(at, consumers.get(part["name"], at))
    return hosts


def _changes(database: Database, name: str, began_at: datetime) -> list[AuditedChange]:
    """Return changes of a consumer and its channel in the day before the onset, newest first."""
    changes = []
    for target in (f"consumer:{name}", f"channel:{name.partition('/')[0]}"):
        rows = database.read(
            "SELECT at, actor, action, after FROM channels_app_auditentry "
            "WHERE target = %s AND at >= %s AND at <= %s ORDER BY id DESC LIMIT %s",
            [target, began_at - NEAR, began_at, MAX_CHANGES],
        )
        for at, actor, action, after in rows:
            fields = json.loads(after) if after and action.endswith(".update") else None
            names = tuple(sorted(fields)) if isinstance(fields, dict) else ()
            changes.append(
                AuditedChange(instant(at), actor, action, target.partition(":")[2], names)
            )
    return changes


def _before(past: Row | None, last_dead_at: datetime | None) -> History:
    if past is None:
        return History(last_dead_at=last_dead_at)
    last = past["last"]
    return History(
        arrived_count=past["arrived_count"],
        since=utc(past["since"]),
        last_outcome=last["outcome"],
        last_status=last["status_code"],
        last_dead_at=last_dead_at,
    )
