"""Messages, deliveries and attempts as Spark datasets, from lake or tables.

A row is in the broker's tables or in the lake. While a segment is being deleted from the tables its
files hold rows that are still there; these count once. Nothing is deleted there as long as a run is
at work (the broker's pruning rests), so the two halves of a question fit together; where rows are
read from a replica, it has to know of what was deleted before (broker/replica.py).
"""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.broker import high_watermark, source, tables
from pipeline.broker.database import Database
from pipeline.broker.tables import (
    ATTEMPTS,
    DELIVERIES,
    MESSAGES,
    RESTORED_KEYS,
    WHOLE_MESSAGES,
    Table,
)
from pipeline.settings import Settings

SEGMENTS = "delivery_segment"
RESTORED = "delivery_restoredmessage"
SKEW = timedelta(hours=1)
"""So far the clocks of two machines may be apart, of which one made a key and one wrote a time."""
LATE = timedelta(days=1)
"""An attempt is written down when it ends: after its timeout, and after an outage of ours."""
KIND = {"messages": "messages", "deliveries": "deliveries", "attempts": "deliveries"}
"""In which kind of segment a table's rows go to the lake."""


class Frames:
    """Reads ranges of time by the keys of rows, which rise with it."""

    def __init__(
        self,
        spark: SparkSession,
        database: Database,
        settings: Settings,
        catch_up: Callable[[], None] = lambda: None,
    ) -> None:
        """``catch_up`` ends when rows that are committed now are there where rows are read."""
        self._spark = spark
        self._database = database
        self._settings = settings
        # In this order: what is below the fence is committed, and has to be there.
        self._bound = high_watermark.bound(database, settings.lag)
        catch_up()

    def bound(self) -> datetime:
        """All rows up to here are there (broker/high_watermark.py)."""
        return self._bound

    def messages(
        self, since: datetime | None, until: datetime, columns: Sequence[str]
    ) -> DataFrame:
        """Messages that were accepted in that time, without their bodies."""
        return self._rows(MESSAGES, since, until, columns)

    def deliveries(
        self, since: datetime | None, until: datetime, columns: Sequence[str]
    ) -> DataFrame:
        """Deliveries that were made in that time, in whatever state they are now."""
        return self._rows(DELIVERIES, since, until, columns)

    def finished(self, since: datetime, until: datetime, columns: Sequence[str]) -> DataFrame:
        """Deliveries that ended in that time, whenever they were made.

        A message may wait for its consumer for ever, so that all keys are looked at: by the
        database, which sends what is asked for alone, and in the lake by the files' statistics.
        """
        low, high = (str(at.astimezone(UTC).replace(tzinfo=None)) for at in (since, until))
        where = f"d.finished_at >= '{low}' AND d.finished_at < '{high}'"
        wanted = list(dict.fromkeys([*columns, "finished_at"]))
        rows = self._rows(DELIVERIES, None, until + SKEW, wanted, where)
        ended = f.col("finished_at")
        return rows.where((ended >= f.lit(since)) & (ended < f.lit(until))).select(*columns)

    def attempts(
        self, since: datetime | None, until: datetime, columns: Sequence[str]
    ) -> DataFrame:
        """Attempts that were written down in that time: when they ended."""
        return self._rows(ATTEMPTS, since, until, columns)

    def bodies(self, since: datetime | None, until: datetime) -> DataFrame:
        """``id``, ``body`` and ``body_key_id`` of messages that the lake has, as it has them."""
        low = tables.first_key(since) if since else 0
        high = tables.first_key(until)
        columns = ["id", "body", "body_key_id"]
        whole, partly = self._files(WHOLE_MESSAGES, low, high)
        if whole or partly:
            return self._parquet(WHOLE_MESSAGES, whole + partly, low, high, columns)
        return self._spark.createDataFrame([], source.spark_schema(WHOLE_MESSAGES, tuple(columns)))

    def paths(self, table: Table, since: datetime) -> list[str]:
        """Files of the lake with rows of which keys may have been made then or later."""
        whole, partly = self._files(table, tables.first_key(since), tables.LARGEST_KEY)
        return whole + partly

    def keys(self, table: Table, low: int, high: int, *columns: str) -> DataFrame:
        """Keys, and what else is named, of rows that the broker's tables have now."""
        first = self._database.read(f"SELECT COALESCE(MIN({table.key}), 0) FROM {table.source}")
        return self.live(table, max(low, int(first[0][0])), high, ["id", *columns])

    def live(
        self, table: Table, low: int, high: int, columns: Sequence[str], where: str = ""
    ) -> DataFrame:
        """Rows of the broker's tables with keys from ``low`` up to, but not with, ``high``."""
        rows = self._spark.read.format(source.FORMAT)
        rows = rows.schema(source.spark_schema(table, tuple(columns)))
        ranges = 4 * self._settings.partitions
        rows = rows.options(table=table.name, low=low, high=high, ranges=ranges, where=where)
        return rows.load()

    def _rows(
        self,
        table: Table,
        since: datetime | None,
        until: datetime,
        columns: Sequence[str],
        where: str = "",
    ) -> DataFrame:
        """``where`` spares the database rows that the caller does not want; the lake's it gets."""
        low = tables.first_key(since) if since else 0
        high = tables.first_key(until)
        # From its first key on: else nearly all of a wide range would be one empty part.
        wanted = list(dict.fromkeys(["id", *columns]))
        found = self.live(table, max(low, self.oldest(table)), high, wanted, where)
        whole, partly = self._files(table, low, high)
        if whole and table is MESSAGES and self._is_any_restored():
            back = self.keys(RESTORED_KEYS, low, high)
            found = found.join(back, "id", "left_anti")
        found = found.select(*columns)
        if whole:
            found = found.unionByName(self._parquet(table, whole, low, high, columns))
        if partly:
            archived = self._parquet(table, partly, low, high, wanted)
            left = self.live(table, low, high, ["id"])
            archived = archived.join(left, "id", "left_anti").select(*columns)
            found = found.unionByName(archived)
        return found

    def oldest(self, table: Table) -> int:
        """The first key that the broker's table has."""
        name = table.source.split()[0]
        return int(self._database.read(f"SELECT COALESCE(MIN(id), 0) FROM {name}")[0][0])

    def _is_any_restored(self) -> bool:
        """Whether messages stand in the tables again that the lake has (jobs/replay.py)."""
        return bool(self._database.read(f"SELECT message_id FROM {RESTORED} LIMIT 1"))

    def _files(self, table: Table, low: int, high: int) -> tuple[list[str], list[str]]:
        """The lake's files with keys in the range: those that stand for their rows alone, and those
        whose rows are partly still in the tables."""
        if self._settings.lake is None:
            return [], []
        whole: list[str] = []
        partly: list[str] = []
        for state, files in self._database.read(
            f"SELECT state, files FROM {SEGMENTS} WHERE kind = %s AND low < %s "
            "AND state IN ('pruning', 'amending', 'pruned')",
            [KIND[table.name], high],
        ):
            for file in json.loads(files):
                if _meets(file, table, low, high):
                    path = str(self._settings.lake / file["path"])
                    (whole if state == "pruned" else partly).append(path)
        return whole, partly

    def _parquet(
        self, table: Table, paths: list[str], low: int, high: int, columns: Sequence[str]
    ) -> DataFrame:
        schema = source.spark_schema(table)
        rows = self._spark.read.schema(schema).parquet(*paths)
        return rows.where((f.col("id") >= low) & (f.col("id") < high)).select(*columns)


def _meets(file: dict[str, Any], table: Table, low: int, high: int) -> bool:
    if file["table"] != table.name or not file["rows"]:
        return False
    return bool(file["first"] < high and file["last"] >= low)
