"""Select the messages of a replay from the lake and the tables."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pipeline.broker import tables
from pipeline.lake.datasets import Frames
from pipeline.transforms.balance import AHEAD, SKEW

COLUMNS = tuple(column.name for column in tables.MESSAGE_COLUMNS)
ON_ITS_WAY = ("queued", "in_flight", "awaiting_ack")
ALL, DEAD, MISSING = "all", "dead", "missing"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was requested. Empty fields do not restrict."""

    consumer_id: int
    channel_id: int
    own_event_types: list[str]
    """Event types for which the consumer registered."""
    since: datetime | None
    until: datetime
    which: str
    """ALL; DEAD: with a delivery to the consumer, but never delivered; MISSING: without a
    delivery."""
    event_types: list[str]
    ordering_keys: list[str]
    keys: list[int]

    def window(self) -> tuple[datetime | None, datetime]:
        """The range to read; a few named messages need only their own."""
        if not self.keys:
            return self.since, self.until
        a_ms = timedelta(milliseconds=1)
        first, last = tables.made_at(min(self.keys)), tables.made_at(max(self.keys)) + a_ms
        return max(self.since or first, first), min(self.until, last)


@dataclass(frozen=True, slots=True)
class Count:
    """The result of a selection."""

    messages: int
    bytes: int
    first: datetime | None
    last: datetime | None
    without_body: int
    """Messages whose bodies are neither in the tables nor in the lake."""
    key_ids: list[str]
    """Ids of the keys that encrypted their bodies."""


class Selection:
    """The messages of one replay."""

    def __init__(self, frames: Frames, wanted: Wanted, now: datetime) -> None:
        self._frames = frames
        self._wanted = wanted
        self._now = now

    @cached_property
    def messages(self) -> DataFrame:
        """Each message once, with its columns and ``is_first``: it never had a delivery."""
        wanted = self._wanted
        since, until = wanted.window()
        rows = self._frames.messages(since, until, COLUMNS)
        rows = rows.where(
            (f.col("channel_id") == wanted.channel_id) & (f.col("state") == "dispatched")
        )
        rows = rows.where(f.col("expires_at").isNull() | (f.col("expires_at") > f.lit(self._now)))
        if wanted.event_types:
            rows = rows.where(_of_types(wanted.event_types))
        if wanted.ordering_keys:
            rows = rows.where(f.col("ordering_key").isin(wanted.ordering_keys))
        if wanted.keys:
            rows = rows.where(f.col("id").isin(wanted.keys))
        rows = rows.dropDuplicates(["id"]).join(self._deliveries(), "id", "left")
        made = f.coalesce("made", f.lit(0))
        rows = rows.where(f.coalesce("on_its_way", f.lit(False)) == f.lit(False))
        if wanted.which == DEAD:
            rows = rows.where((made > 0) & ~f.col("delivered"))
        elif wanted.which == MISSING:
            rows = rows.where(made == 0)
        rows = rows.where((made > 0) | _of_types(wanted.own_event_types))
        rows = rows.select(*COLUMNS, (made == 0).alias("is_first"))
        # Persisted, since it is counted, divided and read.
        return rows.persist(StorageLevel.DISK_ONLY)

    def forget(self) -> None:
        """Release the disk space."""
        if "messages" in self.__dict__:
            self.messages.unpersist()

    def whole(self, after: int) -> DataFrame:
        """Add the bodies in the lake, after a given key."""
        rows = self.messages.where(f.col("id") > after)
        bodies = self._frames.bodies(*self._wanted.window())
        bodies = bodies.join(rows.select("id"), "id", "left_semi").dropDuplicates(["id"])
        return rows.join(bodies, "id", "left")

    def count(self) -> Count:
        """Count exactly, as of now."""
        since, until = self._wanted.window()
        low = tables.first_key(since) if since else 0
        here = self._frames.keys(tables.MESSAGES, low, tables.first_key(until))
        rows = self.whole(-1).join(here.withColumn("here", f.lit(True)), "id", "left")
        bare = f.col("body").isNull() & f.col("here").isNull()
        found = rows.agg(
            f.count("*").alias("messages"),
            f.coalesce(f.sum("body_bytes"), f.lit(0)).alias("bytes"),
            f.min("accepted_at").alias("first"),
            f.max("accepted_at").alias("last"),
            f.count(f.when(bare, 1)).alias("without_body"),
            f.collect_set(f.when(f.col("body").isNotNull(), f.col("body_key_id"))).alias("key_ids"),
        ).first()
        assert found is not None
        values: dict[str, Any] = found.asDict()
        values["key_ids"] = sorted(filter(None, values["key_ids"]))
        return Count(**values)

    def _deliveries(self) -> DataFrame:
        since, _ = self._wanted.window()
        rows = self._frames.deliveries(
            since and since - SKEW, self._now + AHEAD, ["message_id", "consumer_id", "state"]
        )
        rows = rows.where(f.col("consumer_id") == self._wanted.consumer_id)
        state = f.col("state")
        return rows.groupBy(f.col("message_id").alias("id")).agg(
            f.count("*").alias("made"),
            f.max(state == "delivered").alias("delivered"),
            f.max(state.isin(*ON_ITS_WAY)).alias("on_its_way"),
        )


def _of_types(patterns: list[str]) -> Column:
    """Whether one of the patterns matches an event type; an empty list matches all."""
    found = f.lit(not patterns)
    kind = f.col("event_type")
    for pattern in patterns:
        if pattern == "*":
            return f.lit(True)
        found |= kind.startswith(pattern[:-1]) if pattern.endswith(".*") else kind == pattern
    return found
