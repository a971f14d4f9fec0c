"""Count what each producer sent and each consumer received, by the hour, for billing."""

import csv
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f

from pipeline.broker import tables
from pipeline.broker.database import Database
from pipeline.contract import csv_cells
from pipeline.contract.jobs import JOBS
from pipeline.core import health, hours
from pipeline.execution.job import Context, Job, JobError
from pipeline.lake.datasets import CLOCK_SKEW, RECORDING_DELAY, Datasets
from pipeline.transforms.endpoints import arrived, bucket, hour_of

DEFAULT_WINDOW = timedelta(hours=48)
USAGE, LATENCY = "delivery_usagehour", "delivery_latencyhour"
FINAL_STATES = ("delivered", "dead", "cancelled")
COUNTED = ("messages", "bytes", *FINAL_STATES, "attempts", "failed_attempts", "bytes_out")
KEYS = ("hour", "channel_id", "producer_id", "consumer_id")
OWNER = ("message_id", "consumer_id", "channel_id")
"""Columns by which an attempt or a delivery names its owner."""
CSV_HEADER = ("hour", "producer", "channel", "consumer", *COUNTED)
"""Columns of the CSV file."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--since",
        type=hours.valid,
        metavar="WHEN",
        help="First hour, as an ISO date or instant in UTC (default: 48 hours before the end).",
    )
    parser.add_argument(
        "--until",
        type=hours.valid,
        metavar="WHEN",
        help="End, exclusive (default: the last whole hour).",
    )
    parser.add_argument("--csv", metavar="FILE", help="Also write the counts to this file.")


def work(context: Context) -> dict[str, Any]:
    """Count whole hours again, and replace their former counts."""
    datasets = context.datasets
    bound = datasets.readable_until()
    since, until = hours.window(context.options.since, context.options.until, bound, DEFAULT_WINDOW)
    if since >= until:
        raise JobError(f"No whole hour between {since:%Y-%m-%d %H:%M} and {until:%Y-%m-%d %H:%M}.")
    context.report("reading")
    attempts = datasets.attempts(
        since - CLOCK_SKEW,
        min(until + RECORDING_DELAY, bound),
        [*OWNER, "started_at", "outcome", "total_ms"],
    ).where(_within("started_at", since, until))
    attempts = attempts.persist()
    try:
        usage = _usage(datasets, attempts, since, until).orderBy("hour_s").persist()
        latency = _latency(attempts).orderBy("hour_s")
        totals = _write(context, usage, latency, since, until)
        usage.unpersist()
    finally:
        attempts.unpersist()
    if context.options.csv:
        context.report("writing the file")
        write_csv(context.database, Path(context.options.csv), since, until)
    return {"since": since.isoformat(), "until": until.isoformat(), **totals}


JOB = Job("usage", JOBS["usage"].summary, add_options, work)


def by_day(rows: Iterable[Row], dates: Iterable[date]) -> Iterator[list[Row]]:
    """Yield the rows of each of these days; rows come in chronological order."""
    groups = groupby(rows, key=lambda row: instant(row).date())
    day, day_rows = next(groups, (None, iter(())))
    for wanted in dates:
        rows_of_day = list(day_rows) if day == wanted else []
        if day == wanted:
            day, day_rows = next(groups, (None, iter(())))
        yield rows_of_day


def instant(row: Row) -> datetime:
    """Return the row's hour."""
    return datetime.fromtimestamp(row["hour_s"], UTC)


def write_csv(database: Database, path: Path, since: datetime, until: datetime) -> None:
    """Write the hours to a CSV file, with names instead of ids, completely or not at all."""
    names = ", ".join(f"u.{name}" for name in COUNTED)
    sql = (
        f"SELECT u.hour, p.slug, c.slug, k.client_id, u.producer_id, u.channel_id, u.consumer_id, "
        f"{names} FROM {USAGE} u LEFT JOIN channels_app_producer p ON p.id = u.producer_id "
        "LEFT JOIN channels_app_channel c ON c.id = u.channel_id "
        "LEFT JOIN channels_app_consumer k ON k.id = u.consumer_id "
        "WHERE u.hour >= %s AND u.hour < %s ORDER BY u.hour, c.slug, p.slug, k.client_id, u.id"
    )
    part = path.with_name(f"{path.name}.part")
    with part.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(CSV_HEADER)
        for start, end in hours.days(since, until):
            for hour, producer, channel, consumer, *rest in database.read(sql, [start, end]):
                owners = (producer, channel, consumer)
                shown = [
                    csv_cells.safe(name or (f"#{number}" if number else ""))
                    for name, number in zip(owners, rest[:3], strict=True)
                ]
                table.writerow([str(hour)[:16], *shown, *rest[3:]])
    part.replace(path)


def _within(column: str, since: datetime, until: datetime) -> Column:
    return (f.col(column) >= f.lit(since)) & (f.col(column) < f.lit(until))


def _usage(datasets: Datasets, attempts: DataFrame, since: datetime, until: datetime) -> DataFrame:
    """Return a row for each hour, channel, producer and consumer with any traffic."""
    messages = datasets.messages(
        since - CLOCK_SKEW,
        until + CLOCK_SKEW,
        ["channel_id", "producer_id", "body_bytes", "accepted_at"],
    ).where(_within("accepted_at", since, until))
    accepted = messages.select(
        hour_of("accepted_at"),
        "channel_id",
        f.coalesce("producer_id", f.lit(0)).alias("producer_id"),
        f.lit(0).cast("long").alias("consumer_id"),
        *_counts(messages=f.lit(1), bytes=f.col("body_bytes")),
    )
    own = f.col("outcome").isin(*health.BROKERS_OWN)
    tried = attempts.select(
        hour_of("started_at"),
        *OWNER,
        *_counts(attempts=f.lit(1), failed_attempts=~arrived() & ~own, bytes_out=arrived()),
    )
    finished = datasets.finished(since, until, [*OWNER, "state", "finished_at"])
    ended = finished.select(
        hour_of("finished_at"),
        *OWNER,
        *_counts(**{end: f.col("state") == end for end in FINAL_STATES}),
    )
    # Aggregate by message first, so that few rows are joined with the messages.
    by_message = _summed(tried.unionByName(ended), "hour_s", *OWNER).persist()
    sizes = _messages_of(datasets, by_message)
    sent = by_message.join(sizes, "message_id", "left").select(
        *("hour_s", "channel_id", "consumer_id"),
        f.coalesce("producer_id", f.lit(0)).alias("producer_id"),
        *(name for name in COUNTED if name != "bytes_out"),
        (f.col("bytes_out") * f.coalesce("body_bytes", f.lit(0))).alias("bytes_out"),
    )
    return _summed(accepted.unionByName(sent), "hour_s", "channel_id", "producer_id", "consumer_id")


def _counts(**values: Column) -> list[Column]:
    """Return all counted columns; 0 where no value is given."""
    return [values.get(name, f.lit(0)).cast("long").alias(name) for name in COUNTED]


def _summed(rows: DataFrame, *keys: str) -> DataFrame:
    return rows.groupBy(*keys).agg(*(f.sum(name).alias(name) for name in COUNTED))


def _messages_of(datasets: Datasets, rows: DataFrame) -> DataFrame:
    """Return producer and size of the rows' messages, reading only the days that have any."""
    day = f.shiftright("message_id", tables.TIME_SHIFT) / f.lit(1000 * hours.DAY_S)
    days = rows.select(f.floor(day).alias("day")).distinct().collect()
    parts = [
        datasets.messages(
            tables.EPOCH + timedelta(days=first),
            tables.EPOCH + timedelta(days=last + 1),
            ["id", "producer_id", "body_bytes"],
        )
        # For example today's, and a single one of last month, without the days in between.
        for first, last in hours.spans([row["day"] for row in days]) or [(0, 0)]
    ]
    return reduce(DataFrame.unionByName, parts).withColumnRenamed("id", "message_id")


def _latency(attempts: DataFrame) -> DataFrame:
    """Count the delivered attempts of each hour and consumer by latency."""
    place = bucket(f.col("total_ms")).alias("bucket")
    rows = attempts.where(arrived()).groupBy(hour_of("started_at"), "consumer_id", place)
    return rows.agg(f.count("*").alias("count"))


def _write(
    context: Context, usage: DataFrame, latency: DataFrame, since: datetime, until: datetime
) -> dict[str, int]:
    """Write each day in one transaction; returns the totals."""
    totals = dict.fromkeys(COUNTED, 0)
    days = list(hours.days(since, until))
    dates = [start.date() for start, _ in days]
    counted = by_day(usage.toLocalIterator(), dates)
    timed = by_day(latency.toLocalIterator(), dates)
    database, written = context.database, 0
    for done, ((start, end), rows, times) in enumerate(zip(days, counted, timed, strict=True)):
        context.report("counting", done, len(days), written)
        with database.transaction():
            context.run.require_lock(database)
            span = "hour", start, end
            database.replace_rows(
                *(USAGE, *span, (*KEYS, *COUNTED)),
                [[instant(row), *(row[name] for name in (*KEYS[1:], *COUNTED))] for row in rows],
            )
            database.replace_rows(
                *(LATENCY, *span, ("hour", "consumer_id", "bucket", "count")),
                [[instant(row), row["consumer_id"], row["bucket"], row["count"]] for row in times],
            )
        written += len(rows) + len(times)
        for name in COUNTED:
            totals[name] += sum(row[name] for row in rows)
    context.report("counted", len(days), len(days), written)
    return totals
