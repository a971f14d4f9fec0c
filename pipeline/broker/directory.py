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

EVERY_CHANNEL = 0
"""The mark under this number applies to messages; the one under a channel's to its deliveries."""
BEING_DELETED = (1 << 63) - 1
KEYS = (
    "channel_id bigint, mark bigint, "
    "parties array<struct<id: bigint, since: bigint, event_types: array<string>>>"
)
CONSUMERS = "consumer_id bigint, home bigint"
SPANS = (
    "consumer_id bigint, "
    "spans array<struct<first: bigint, last: bigint, low: bigint, high: bigint>>"
)


@dataclass(frozen=True, slots=True)
class Party:
    """A consumer."""

    id: int
    channel_id: int
    event_types: list[str]
    """Names and patterns. An empty list matches everything."""
    is_retired: bool
    of_queue: bool
    """Whether its channel is a queue, which gives each message to one of its consumers."""
    since: int
    """The first key whose message was fanned out with exactly these settings."""


@dataclass(frozen=True, slots=True)
class Span:
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
class Parties:
    """All consumers, retired ones included, with channels, marks and replays."""

    consumers: list[Party]
    channel_ids: list[int]
    marks: dict[int, int]
    """By channel: retention may have deleted deliveries of messages up to this key."""
    spans: list[Span]

    @property
    def mark(self) -> int:
        """Retention may have deleted messages up to this key."""
        return self.marks.get(EVERY_CHANNEL, 0)

    def key_rows(self, spark: SparkSession) -> DataFrame:
        """Return a row for each channel with its active consumers; queues have none."""
        wanting: dict[int, list[tuple[int, int, list[str]]]] = {it: [] for it in self.channel_ids}
        for party in self.consumers:
            is_meant = not (party.is_retired or party.of_queue)
            if is_meant and party.channel_id in wanting:
                wanting[party.channel_id].append((party.id, party.since, party.event_types))
        rows = [(key, self.marks.get(key, 0), found) for key, found in wanting.items()]
        return spark.createDataFrame(rows, KEYS)

    def homes(self, spark: SparkSession) -> DataFrame:
        """Return the channel of each consumer."""
        rows = [(party.id, party.channel_id) for party in self.consumers]
        return spark.createDataFrame(rows, CONSUMERS)

    def restores(self, spark: SparkSession) -> DataFrame:
        """Return the replays from the lake of each consumer."""
        found: dict[int, list[tuple[int, int, int, int]]] = {}
        for it in self.spans:
            found.setdefault(it.consumer_id, []).append((it.first, it.last, it.low, it.high))
        return spark.createDataFrame(list(found.items()), SPANS)


def read(database: Database, grace: timedelta) -> Parties:
    """Read the current state. ``grace`` exceeds the difference between the hosts' clocks."""
    consumers = [
        Party(key, home, json.loads(types), state == "retired", kind == "queue", _since(at, grace))
        for key, home, types, state, kind, at in database.read(
            "SELECT c.id, c.channel_id, c.event_types, c.state, h.kind, c.updated_at "
            "FROM channels_app_consumer AS c "
            "JOIN channels_app_channel AS h ON h.id = c.channel_id"
        )
    ]
    return Parties(
        consumers,
        [key for (key,) in database.read("SELECT id FROM channels_app_channel")],
        dict(database.read("SELECT channel_id, message_id FROM delivery_retentionmark")),
        [
            Span(*row)
            for row in database.read(
                "SELECT consumer_id, first_key, last_key, low, high FROM delivery_restore "
                "WHERE last_key > 0"
            )
        ],
    )


def _since(changed_at: object, grace: timedelta) -> int:
    at: datetime = instant(changed_at)
    return tables.first_key(at + grace)
