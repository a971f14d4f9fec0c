"""Channels and consumers as the broker's tables know them, and rows that may be gone by right.

The same rules as the broker's own audit has: what a consumer wanted before its last change nobody
knows, and what retention deletes lies below a mark.
"""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

from pipeline.broker import tables
from pipeline.broker.database import Database, instant

EVERY_CHANNEL = 0
"""Under this number is the mark of messages; under a channel's that of its deliveries."""
BEING_DELETED = (1 << 63) - 1
LANES = (
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
    """Names and patterns; none at all want everything."""
    is_retired: bool
    of_queue: bool
    """Whether its channel gives each message to one consumer, whichever it is."""
    since: int
    """The first key whose message was fanned out with exactly these settings."""


@dataclass(frozen=True, slots=True)
class Span:
    """What one replay from the lake made: deliveries with keys from ``first`` to ``last``, of
    messages with keys from ``low`` to ``high``."""

    consumer_id: int
    first: int
    last: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Parties:
    """All there are, retired ones too."""

    consumers: list[Party]
    channel_ids: list[int]
    marks: dict[int, int]
    """Up to which message of a channel deliveries may be gone."""
    spans: list[Span]

    @property
    def mark(self) -> int:
        """Up to which message messages may be gone."""
        return self.marks.get(EVERY_CHANNEL, 0)

    def lanes(self, spark: SparkSession) -> DataFrame:
        """A row for each channel, with those that want its messages."""
        wanting: dict[int, list[tuple[int, int, list[str]]]] = {it: [] for it in self.channel_ids}
        for party in self.consumers:
            is_meant = not (party.is_retired or party.of_queue)
            if is_meant and party.channel_id in wanting:
                wanting[party.channel_id].append((party.id, party.since, party.event_types))
        rows = [(key, self.marks.get(key, 0), found) for key, found in wanting.items()]
        return spark.createDataFrame(rows, LANES)

    def homes(self, spark: SparkSession) -> DataFrame:
        """The channel of each consumer."""
        rows = [(party.id, party.channel_id) for party in self.consumers]
        return spark.createDataFrame(rows, CONSUMERS)

    def restores(self, spark: SparkSession) -> DataFrame:
        """What was made for each consumer from the lake."""
        found: dict[int, list[tuple[int, int, int, int]]] = {}
        for it in self.spans:
            found.setdefault(it.consumer_id, []).append((it.first, it.last, it.low, it.high))
        return spark.createDataFrame(list(found.items()), SPANS)


def read(database: Database, grace: timedelta) -> Parties:
    """As they are now. ``grace``: clocks of hosts differ by less."""
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
        dict(database.read("SELECT channel_id, message_id FROM delivery_pruned")),
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
