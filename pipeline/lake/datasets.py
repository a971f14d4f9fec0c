"""Read messages, deliveries and attempts as Spark datasets, from lake or tables.

A row is in the broker's tables or in the lake. While the broker deletes a segment from its tables,
the segment's files contain rows that are still there; these count once. The broker's pruning pauses
while a run is active, so both halves of a query are consistent. A replica must first have applied
earlier deletions (broker/replica.py).
"""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.broker import source, tables
from pipeline.broker.database import Database
from pipeline.broker.tables import (
    ATTEMPTS,
    DELIVERIES,
    MESSAGES,
    MESSAGES_WITH_BODIES,
    RESTORED_KEYS,
    Table,
)
from pipeline.settings import Settings

SEGMENTS = "delivery_segment"
RESTORED = "delivery_restoredmessage"
CLOCK_SKEW = timedelta(hours=1)
"""Maximum clock difference between the machine that generated a key and the one that wrote a
time."""
RECORDING_DELAY = timedelta(days=1)
"""An attempt is recorded when it ends: after its timeout, and after an outage of the broker."""
SEGMENT_KINDS = {"messages": "messages", "deliveries": "deliveries", "attempts": "deliveries"}
"""By table: the kind of segment that archives its rows."""


class Datasets:
    """Read ranges of time by the keys of rows, which rise with time."""

    def __init__(
        self,
        spark: SparkSession,
        database: Database,
        settings: Settings,
        catch_up: Callable[[], None] = lambda: None,
    ) -> None:
        """``catch_up`` returns when rows that are committed now are readable by Spark."""
        self._spark = spark
        self._database = database
        self._settings = settings
        # In this order: rows below the high watermark are committed, and must be readable.
        self._readable_until = database.readable_until(settings.lag)
        catch_up()

    def readable_until(self) -> datetime:
        """The instant up to which all rows are readable (broker/database.py)."""
        return self._readable_until

    def messages(
        self, since: datetime | None, until: datetime, columns: Sequence[str]
    ) -> DataFrame:
        """Messages accepted in that time, without their bodies."""
        return self._rows(MESSAGES, since, until, columns)

    def deliveries(
        self, since: datetime | None, until: datetime, columns: Sequence[str]
    ) -> DataFrame:
        """Deliveries created in that time, in any state."""
        return self._rows(DELIVERIES, since, until, columns)

    def finished(self, since: datetime, until: datetime, columns: Sequence[str]) -> DataFrame:
        """Deliveries that ended in that time, whenever they were created.

        A message may wait for its consumer for any time, so all keys are searched: in the tables by
        the database, which returns only matching rows, and in the lake by the files' statistics.
        """
        low, high = (str(at.astimezone(UTC).replace(tzinfo=None)) for at in (since, until))
        where = f"d.finished_at >= '{low}' AND d.finished_at < '{high}'"
        wanted = list(dict.fromkeys([*columns, "finished_at"]))
        rows = self._rows(DELIVERIES, None, until + CLOCK_SKEW, wanted, where)
        ended = f.col("finished_at")
        return rows.where((ended >= f.lit(since)) & (ended < f.lit(until))).select(*columns)

    def attempts(
        self, since: datetime | None, until: datetime, columns: Sequence[str]
    ) -> DataFrame:
        """Attempts recorded in that time, which is when they ended."""
        return self._rows(ATTEMPTS, since, until, columns)

    def bodies(self, since: datetime | None, until: datetime) -> DataFrame:
        """``id``, ``body`` and ``body_key_id`` of messages in the lake, as stored there."""
        low = tables.first_key(since) if since else 0
        high = tables.first_key(until)
        columns = ["id", "body", "body_key_id"]
        pruned, pruning = self._files(MESSAGES_WITH_BODIES, low, high)
        if pruned or pruning:
            return self._parquet(MESSAGES_WITH_BODIES, pruned + pruning, low, high, columns)
        return self._spark.createDataFrame(
            [], source.spark_schema(MESSAGES_WITH_BODIES, tuple(columns))
        )

    def paths(self, table: Table, since: datetime) -> list[str]:
        """Files of the lake that may have rows with keys generated since then."""
        pruned, pruning = self._files(table, tables.first_key(since), tables.LARGEST_KEY)
        return pruned + pruning

    def table_keys(self, table: Table, low: int, high: int, *columns: str) -> DataFrame:
        """Keys, and the named columns, of rows that are in the broker's tables now."""
        first = self._database.read(f"SELECT COALESCE(MIN({table.key}), 0) FROM {table.source}")
        return self.table_rows(table, max(low, int(first[0][0])), high, ["id", *columns])

    def table_rows(
        self, table: Table, low: int, high: int, columns: Sequence[str], where: str = ""
    ) -> DataFrame:
        """Rows of the broker's tables with keys from ``low`` up to ``high``, which is exclusive."""
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
        """``where`` filters rows of the tables only; the caller filters those of the lake."""
        low = tables.first_key(since) if since else 0
        high = tables.first_key(until)
        # Start at the table's first key, or nearly all of a wide range would be one empty part.
        wanted = list(dict.fromkeys(["id", *columns]))
        rows = self.table_rows(table, max(low, self.first_key(table)), high, wanted, where)
        pruned, pruning = self._files(table, low, high)
        if pruned and table is MESSAGES and self._is_any_restored():
            restored = self.table_keys(RESTORED_KEYS, low, high)
            rows = rows.join(restored, "id", "left_anti")
        rows = rows.select(*columns)
        if pruned:
            rows = rows.unionByName(self._parquet(table, pruned, low, high, columns))
        if pruning:
            archived = self._parquet(table, pruning, low, high, wanted)
            remaining = self.table_rows(table, low, high, ["id"])
            archived = archived.join(remaining, "id", "left_anti").select(*columns)
            rows = rows.unionByName(archived)
        return rows

    def first_key(self, table: Table) -> int:
        """The first key of the broker's table."""
        name = table.source.split()[0]
        return int(self._database.read(f"SELECT COALESCE(MIN(id), 0) FROM {name}")[0][0])

    def _is_any_restored(self) -> bool:
        """Whether the tables have messages that were restored from the lake (jobs/replay.py)."""
        return bool(self._database.read(f"SELECT message_id FROM {RESTORED} LIMIT 1"))

    def _files(self, table: Table, low: int, high: int) -> tuple[list[str], list[str]]:
        """Return the lake's files with keys in the range, as two lists.

        Rows of the first list's files are only in the lake. Some rows of the second list's files
        are still in the tables.
        """
        if self._settings.lake is None:
            return [], []
        pruned: list[str] = []
        pruning: list[str] = []
        for state, files in self._database.read(
            f"SELECT state, files FROM {SEGMENTS} WHERE kind = %s AND low < %s "
            "AND state IN ('pruning', 'amending', 'pruned')",
            [SEGMENT_KINDS[table.name], high],
        ):
            for file in json.loads(files):
                if _overlaps(file, table, low, high):
                    path = str(self._settings.lake / file["path"])
                    (pruned if state == "pruned" else pruning).append(path)
        return pruned, pruning

    def _parquet(
        self, table: Table, paths: list[str], low: int, high: int, columns: Sequence[str]
    ) -> DataFrame:
        schema = source.spark_schema(table)
        rows = self._spark.read.schema(schema).parquet(*paths)
        return rows.where((f.col("id") >= low) & (f.col("id") < high)).select(*columns)


def _overlaps(file: dict[str, Any], table: Table, low: int, high: int) -> bool:
    if file["table"] != table.name or not file["rows"]:
        return False
    return bool(file["first"] < high and file["last"] >= low)
