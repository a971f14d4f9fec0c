"""Count attempts of consumers and hosts in windows of whole hours."""

from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from pipeline.broker.database import Database
from pipeline.core import health, hours

Span = tuple[datetime, datetime]
WEEK_BEFORE = timedelta(days=7)
BURN_WINDOWS = {"1h": 1, "6h": 6, "24h": 24}
"""Windows of the burn rate, in hours before the end."""
COMPARED = ("day", "before")
"""Windows with all measurements, latencies and recoveries included."""
GROUP_COLUMNS = ("consumer_id", "host")
"""Consumer 0 is all consumers of the host."""
ATTEMPT_COLUMNS = ("id", "consumer_id", "number", "started_at", "outcome", "total_ms")
MICROS = 1_000_000
DURATION_BITS = 31
"""Maximum bits of a duration in milliseconds."""
QUARTERS = tuple(int(2 ** (DURATION_BITS - 1 + place / 4)) + 1 for place in (1, 2, 3))
"""The first integers of the second, third and last quarter of a doubling, at full length."""


def hour_of(column: str) -> Column:
    """Return the beginning of an instant's hour, in seconds."""
    seconds = f.unix_seconds(column)
    return (seconds - seconds % hours.HOUR_S).alias("hour_s")


def arrived() -> Column:
    """Whether an attempt delivered its message."""
    return f.col("outcome").isin(*health.ARRIVED)


def bucket(ms: Column) -> Column:
    """Return the bucket of a duration as in contract/histogram.py, in Spark and with integers.

    The bit length gives the doubling, the bits its quarter.
    """
    whole = f.greatest(ms, f.lit(1)).cast("long")
    doubling = f.length(f.bin(whole)) - f.lit(1)
    place = doubling * f.lit(4)
    # Shift left until all numbers have the same length.
    full = f.call_function("shiftleft", whole, (f.lit(DURATION_BITS - 1) - doubling).cast("int"))
    for quarter in QUARTERS:
        place += (full >= f.lit(quarter)).cast("int")
    return place.cast("int")


def host_of(url: str) -> str:
    """Return the host of a URL; '' for none."""
    try:
        return (urlsplit(url).hostname or "")[:255]
    except ValueError:
        return ""


def hosts(spark: SparkSession, database: Database) -> DataFrame:
    """Return the host of each consumer."""
    rows = database.read("SELECT id, url FROM channels_app_consumer")
    pairs = [(number, host_of(url)) for number, url in rows]
    return spark.createDataFrame(pairs, "consumer_id long, host string")


def windows(spark: SparkSession, spans: list[Span]) -> DataFrame:
    """Return the windows of each day.

    They are the day itself, the 7 days before, the last hours, and the 7 days that end with the
    day.
    """
    rows = []
    week = int(WEEK_BEFORE.total_seconds())
    for start, end in spans:
        low, high = int(start.timestamp()), int(end.timestamp())
        rows += [(low, "day", low, high), (low, "before", low - week, low)]
        rows += [
            (low, name, high - span * hours.HOUR_S, high) for name, span in BURN_WINDOWS.items()
        ]
        rows += [(low, "week", high - week, high)]
    return spark.createDataFrame(rows, "day long, window string, low long, high long")


def by_consumer_and_host(rows: DataFrame, consumer_hosts: DataFrame) -> DataFrame:
    """Return each row twice: for its consumer, and for the consumer's host."""
    host = f.coalesce("host", f.lit(""))
    groups = f.array(
        f.struct(f.col("consumer_id").alias("whose"), host.alias("place")),
        f.struct(f.lit(0).cast("long").alias("whose"), host.alias("place")),
    )
    rest = [name for name in rows.columns if name != "consumer_id"]
    grouped = rows.join(f.broadcast(consumer_hosts), "consumer_id", "left")
    grouped = grouped.select(*rest, f.explode(groups).alias("of")).select(
        *rest, f.col("of.whose").alias("consumer_id"), f.col("of.place").alias("host")
    )
    return grouped.where((f.col("consumer_id") != 0) | (f.col("host") != ""))


def sums(
    attempts: DataFrame, consumer_hosts: DataFrame, spans: DataFrame, end: datetime
) -> DataFrame:
    """Count attempts of each window by outcome and latency; ``end`` is the last one of all windows.

    Counts by consumer and hour first, which leaves few rows.
    """
    place = f.when(arrived(), bucket(f.col("total_ms"))).alias("bucket")
    cube = attempts.groupBy("consumer_id", hour_of("started_at"), "outcome", place).agg(
        f.count("*").alias("n"),
        f.sum((f.col("number") > 1).cast("long")).alias("retries"),
    )
    hour = f.col("hour_s")
    # The weight of an hour depends on how long before the end of its own day it was.
    evening = f.least(
        hour - hour % hours.DAY_S + hours.DAY_S, f.lit(int(end.timestamp())).cast("long")
    )
    age = ((evening - hour) / hours.HOUR_S).cast("int")
    weights = f.array(*[f.lit(health.recency(hour_count)).cast("long") for hour_count in range(24)])
    cube = cube.withColumn("weight", f.element_at(weights, age))
    inside = (f.col("hour_s") >= f.col("low")) & (f.col("hour_s") < f.col("high"))
    timed = f.when(f.col("window").isin(*COMPARED), f.col("bucket")).alias("bucket")
    return (
        by_consumer_and_host(cube, consumer_hosts)
        .join(f.broadcast(spans), inside)
        .groupBy("day", *GROUP_COLUMNS, "window", "outcome", timed)
        .agg(
            f.sum("n").alias("n"),
            f.sum("retries").alias("retries"),
            f.sum(f.col("n") * f.col("weight")).alias("weight"),
            f.sum(f.col("n") * f.col("weight") * f.col("weight")).alias("squares"),
        )
    )


def runs(attempts: DataFrame, consumer_hosts: DataFrame) -> DataFrame:
    """Return runs of failures without a success between them: number, beginning, and end.

    Attempts are in the order of their keys, which is the order in which they ended.
    """
    started = f.unix_micros("started_at")
    tries = by_consumer_and_host(
        attempts.select(
            *("id", "consumer_id"),
            started.alias("started"),
            (started + f.col("total_ms").cast("long") * 1000).alias("ended"),
            arrived().cast("long").alias("good"),
        ),
        consumer_hosts,
    )
    earlier = (
        Window.partitionBy(*GROUP_COLUMNS).orderBy("id").rowsBetween(Window.unboundedPreceding, -1)
    )
    # Attempts with the same number of successes before them form a run, with the success that ends
    # it.
    tries = tries.withColumn("run", f.coalesce(f.sum("good").over(earlier), f.lit(0)))
    grouped = tries.groupBy(*GROUP_COLUMNS, "run").agg(
        f.sum(1 - f.col("good")).alias("failures"),
        f.min(f.when(f.col("good") == 0, f.col("started"))).alias("first"),
        f.min(f.when(f.col("good") == 1, f.col("ended"))).alias("recovered"),
    )
    return grouped.where(f.col("failures") > 0).drop("run")


def recoveries(failure_runs: DataFrame, spans: DataFrame) -> DataFrame:
    """Count the runs that ended in each window, with their durations."""
    at = f.col("recovered")
    inside = (at >= f.col("low") * MICROS) & (at < f.col("high") * MICROS)
    took = (at - f.col("first")) / MICROS
    return (
        failure_runs.join(f.broadcast(_compared(spans)), inside)
        .groupBy("day", *GROUP_COLUMNS, "window")
        .agg(
            f.count("*").alias("n"),
            f.percentile(took, 0.5).alias("median_s"),
            f.max(took).alias("longest_s"),
        )
    )


def outages(failure_runs: DataFrame, spans: DataFrame) -> DataFrame:
    """Return how much of each window long runs covered, and the beginning of an unfinished one."""
    low, high = f.col("low") * MICROS, f.col("high") * MICROS
    first, end = f.col("first"), f.coalesce("recovered", f.lit(1 << 62))
    long = failure_runs.where(f.col("failures") >= health.OUTAGE_FAILURES)
    return (
        long.join(f.broadcast(_compared(spans)), (first < high) & (end > low))
        .groupBy("day", *GROUP_COLUMNS, "window")
        .agg(
            f.sum((f.least(end, high) - f.greatest(first, low)) / MICROS).alias("outage_s"),
            f.max(f.when(end >= high, first)).alias("since"),
        )
    )


def from_micros(micros: int) -> datetime:
    """Convert microseconds to an instant."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _compared(spans: DataFrame) -> DataFrame:
    return spans.where(f.col("window").isin(*COMPARED))
