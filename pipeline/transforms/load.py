"""Read past load by the hour, scheduled load, and the rate of a pump."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.broker.database import Database
from pipeline.core.forecast import HOUR_S, Load, PastLoad, ScheduledLoad, matches
from pipeline.lake.datasets import Datasets

MIN_DELAY = timedelta(minutes=1)
"""A message that is due at least so long after it was accepted was scheduled."""
MINUTE = "SUBSTR({}due_at, 1, 16)"
"""The minute of a column as text, on every database."""
DEFAULT_RATE = 600.0
"""Deliveries per second of one pump: half of the rate for one consumer in docs/performance.md,
which was measured without other work and with little history."""
PUMP_TIMEOUT = timedelta(minutes=1)
COPIES = "copies"
Patterns = Mapping[int, Sequence[Sequence[str]]]
"""By channel: the event types of each consumer."""


class Fanout:
    """Adds to messages, on executors, to how many consumers each would go today."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._counts: dict[tuple[int, str], int] = {}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same rows with one more column."""
        for batch in batches:
            channels, types = (
                batch.column(name).to_pylist() for name in ("channel_id", "event_type")
            )
            copies = [self.of(*pair) for pair in zip(channels, types, strict=True)]
            yield batch.append_column(COPIES, pa.array(copies, pa.int64()))

    def of(self, channel_id: int, event_type: str) -> int:
        """Return how many consumers of the channel want this event type."""
        key = (channel_id, event_type)
        if key not in self._counts:
            filters = self._patterns.get(channel_id, ())
            self._counts[key] = sum(matches(patterns, event_type) for patterns in filters)
        return self._counts[key]


def history(
    datasets: Datasets, fanout: Fanout, since: datetime, until: datetime
) -> Iterator[tuple[int, PastLoad]]:
    """Yield each channel with its hours, by when messages were due."""
    messages = datasets.messages(
        since, until, ["channel_id", "event_type", "state", "accepted_at", "due_at", "body_bytes"]
    )
    due = f.col("due_at")
    messages = messages.where((f.col("state") != "cancelled") & (due >= since) & (due < until))
    rows = _by_hour(_with_copies(messages, fanout)).orderBy("channel_id").toLocalIterator()
    for channel_id, channel_rows in groupby(rows, lambda row: int(row["channel_id"])):
        past = PastLoad()
        for row in channel_rows:
            at = datetime.fromtimestamp(row["hour"] * HOUR_S, UTC)
            kind = past.later if row["later"] else past.at_once
            kind[at] = Load(row["messages"], row["deliveries"], row["bytes"])
        yield channel_id, past


def push_consumers(database: Database) -> tuple[Fanout, dict[int, int]]:
    """Return the active push consumers with their channels."""
    patterns: dict[int, list[Any]] = defaultdict(list)
    channels = {}
    for key, channel_id, event_types in database.read(
        "SELECT id, channel_id, event_types FROM channels_app_consumer "
        "WHERE state = 'active' AND mode = 'push'"
    ):
        patterns[channel_id].append(json.loads(event_types))
        channels[key] = channel_id
    return Fanout(dict(patterns)), channels


def scheduled(
    database: Database,
    fanout: Fanout,
    channels: dict[int, int],
    since: datetime,
    until: datetime,
) -> dict[int, ScheduledLoad]:
    """Return what is due between two instants, by channel. Both queries read short index ranges."""
    loads: dict[int, ScheduledLoad] = defaultdict(ScheduledLoad)
    minute = MINUTE.format("")
    for channel_id, event_type, at, number, size in database.read(
        f"SELECT channel_id, event_type, {minute}, COUNT(*), SUM(body_bytes) "
        "FROM channels_app_message WHERE state = 'accepted' AND due_at > %s AND due_at < %s "
        f"GROUP BY channel_id, event_type, {minute}",
        [since, until],
    ):
        copies = fanout.of(channel_id, event_type)
        load = Load(number, number * copies, int(size) * copies)
        loads[channel_id].add(ScheduledLoad(scheduled={_minute(at): load}))
    minute = MINUTE.format("d.")
    for consumer_id in _queued(database, channels):
        for at, number, size in database.read(
            f"SELECT {minute}, COUNT(*), SUM(COALESCE(m.body_bytes, 0)) FROM delivery_delivery d "
            "LEFT JOIN channels_app_message m ON m.id = d.message_id WHERE d.consumer_id = %s "
            f"AND d.state = 'queued' AND d.due_at > %s AND d.due_at < %s GROUP BY {minute}",
            [consumer_id, since, until],
        ):
            retries = {_minute(at): Load(0, number, int(size))}
            loads[channels[consumer_id]].add(ScheduledLoad(retries=retries))
    return loads


def rate(database: Database, wanted: float | None, now: datetime) -> tuple[float, str]:
    """Return deliveries per second of one pump, and the source of the number."""
    if wanted:
        return wanted, "as asked for"
    ((most,),) = database.read(
        "SELECT MAX(delivered + failed) FROM delivery_traffic WHERE consumer_id = 0 AND span_s = 60"
    )
    ((pumps,),) = database.read(
        "SELECT COUNT(*) FROM delivery_pumpslot WHERE kind = 'pump' AND heartbeat_at > %s",
        [now - PUMP_TIMEOUT],
    )
    seen = int(most or 0) / 60 / max(1, pumps)
    if seen > DEFAULT_RATE:
        return seen, "the busiest minute of the last two days"
    return DEFAULT_RATE, "docs/performance.md"


def _by_hour(messages: DataFrame) -> DataFrame:
    waited = f.unix_micros("due_at") - f.unix_micros("accepted_at")
    return messages.groupBy(
        "channel_id",
        f.floor(f.unix_seconds("due_at") / HOUR_S).alias("hour"),
        (waited >= MIN_DELAY // timedelta(microseconds=1)).alias("later"),
    ).agg(
        f.count("*").alias("messages"),
        f.sum(COPIES).alias("deliveries"),
        f.sum(f.col(COPIES) * f.col("body_bytes")).alias("bytes"),
    )


def _with_copies(messages: DataFrame, fanout: Fanout) -> DataFrame:
    schema = StructType([*messages.schema.fields, StructField(COPIES, LongType())])
    return messages.mapInArrow(fanout, schema)


def _minute(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _queued(database: Database, channels: dict[int, int]) -> list[int]:
    """Return consumers with queued deliveries."""
    rows = database.read(
        "SELECT consumer_id FROM delivery_counter WHERE state = 'queued' "
        "GROUP BY consumer_id HAVING SUM(count) > 0 ORDER BY consumer_id"
    )
    return [key for (key,) in rows if key in channels]
