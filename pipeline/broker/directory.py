"""Read channels, consumers and retention marks from the broker's tables.

These follow the rules of the broker's own reconciliation: it is unknown which messages a consumer
wanted before its last change, and retention deletes rows up to a mark.
"""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

from pipeline.broker import tables
from pipeline.broker.database import Database, instant

ALL_CHANNELS = 0
"""The mark under this number applies to messages; the one under a channel's to its deliveries."""
DELETED_MARK = (1 << 63) - 1
CHANNELS_SCHEMA = (
    "channel_id bigint, mark bigint, "
    "consumers array<struct<id: bigint, since: bigint, event_types: array<string>>>"
)
CONSUMER_CHANNELS_SCHEMA = "consumer_id bigint, own_channel_id bigint"
REPLAYS_SCHEMA = (
    "consumer_id bigint, "
    "replays array<struct<first: bigint, last: bigint, low: bigint, high: bigint>>"
)


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer."""

    id: int
    channel_id: int
    event_types: list[str]
    """Names and patterns. An empty list matches everything."""
    is_retired: bool
    is_in_queue: bool
    """Whether its channel is a queue, which gives each message to one of its consumers."""
    since: int
    """The first key whose message was fanned out with exactly these settings."""


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """Key ranges of one replay from the lake.

    It created deliveries with keys from ``first`` to ``last``, of messages with keys from ``low``
    to ``high``.
    """

    consumer_id: int
    first: int
    last: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class ConsumerDirectory:
    """All consumers, retired ones included, with channels, marks and replays."""

    consumers: list[ConsumerInfo]
    channel_ids: list[int]
    marks: dict[int, int]
    """By channel: retention may have deleted deliveries of messages up to this key."""
    replays: list[ReplayRange]

    @property
    def mark(self) -> int:
        """Retention may have deleted messages up to this key."""
        return self.marks.get(ALL_CHANNELS, 0)

    def channels(self, spark: SparkSession) -> DataFrame:
        """Return a row for each channel with its active consumers; queues have none."""
        active: dict[int, list[tuple[int, int, list[str]]]] = {
            channel_id: [] for channel_id in self.channel_ids
        }
        for consumer in self.consumers:
            gets_all = not (consumer.is_retired or consumer.is_in_queue)
            if gets_all and consumer.channel_id in active:
                active[consumer.channel_id].append(
                    (consumer.id, consumer.since, consumer.event_types)
                )
        rows = [(key, self.marks.get(key, 0), consumers) for key, consumers in active.items()]
        return spark.createDataFrame(rows, CHANNELS_SCHEMA)

    def consumer_channels(self, spark: SparkSession) -> DataFrame:
        """Return the channel of each consumer."""
        rows = [(consumer.id, consumer.channel_id) for consumer in self.consumers]
        return spark.createDataFrame(rows, CONSUMER_CHANNELS_SCHEMA)

    def replay_ranges(self, spark: SparkSession) -> DataFrame:
        """Return the replays from the lake of each consumer."""
        ranges: dict[int, list[tuple[int, int, int, int]]] = {}
        for replay in self.replays:
            ranges.setdefault(replay.consumer_id, []).append(
                (replay.first, replay.last, replay.low, replay.high)
            )
        return spark.createDataFrame(list(ranges.items()), REPLAYS_SCHEMA)


def read(database: Database, grace: timedelta) -> ConsumerDirectory:
    """Read the current state. ``grace`` exceeds the difference between the hosts' clocks."""
    consumers = [
        ConsumerInfo(
            key,
            channel_id,
            json.loads(types),
            state == "retired",
            kind == "queue",
            _since(at, grace),
        )
        for key, channel_id, types, state, kind, at in database.read(
            "SELECT c.id, c.channel_id, c.event_types, c.state, h.kind, c.updated_at "
            "FROM channels_app_consumer AS c "
            "JOIN channels_app_channel AS h ON h.id = c.channel_id"
        )
    ]
    return ConsumerDirectory(
        consumers,
        [key for (key,) in database.read("SELECT id FROM channels_app_channel")],
        dict(database.read("SELECT channel_id, message_id FROM delivery_retentionmark")),
        [
            ReplayRange(*row)
            for row in database.read(
                "SELECT consumer_id, first_key, last_key, low, high FROM delivery_restore "
                "WHERE last_key > 0"
            )
        ],
    )


def _since(changed_at: object, grace: timedelta) -> int:
    at: datetime = instant(changed_at)
    return tables.first_key(at + grace)
