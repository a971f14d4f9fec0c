"""Provide the broker's tables as a Spark data source, read in parallel ranges of their keys.

    rows = spark.read.format("broker_table").schema(...).options(table="attempts", low=0, high=9)
    rows = spark.readStream.format("broker_table").options(table="attempts", lag_s=60)

``low`` is inclusive, ``high`` exclusive. Only the columns of the schema are read. A stream reads up
to the high watermark (high_watermark.py), so that a row that commits late is in the next batch and
in no other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from pipeline import settings
from pipeline.broker import executor, tables
from pipeline.broker.database import Database
from pipeline.broker.tables import Table

FORMAT = "broker_table"
RANGES = 4
"""Ranges of a read, unless the option ``ranges`` is set."""


@dataclass
class KeyRange(InputPartition):
    """Keys from ``low`` (inclusive) up to ``high`` (exclusive)."""

    low: int
    high: int


class BrokerTable(DataSource):
    """One of the tables of tables.BY_NAME. Options: table, low, high, ranges, lag_s, where.

    ``where`` is an SQL condition of columns and the program's own numbers and instants.
    """

    @classmethod
    def name(cls) -> str:
        """The name by which Spark finds it."""
        return FORMAT

    def schema(self) -> StructType:
        """All columns of the table."""
        return spark_schema(_table(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader of a batch query."""
        return BatchReader(_table(self.options), schema.fieldNames(), self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Create the reader of a stream."""
        return StreamReader(_table(self.options), schema.fieldNames(), self.options)


class _RangeReader:
    """Read ranges of a table."""

    def __init__(self, table: Table, names: list[str], options: Mapping[str, str]) -> None:
        self.table = table
        self.names = names
        self.options = dict(options)
        self.ranges = int(options.get("ranges", RANGES))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; runs on an executor."""
        assert isinstance(partition, KeyRange)
        key = self.table.key
        where = f"{key} >= {partition.low:d} AND {key} < {partition.high:d}"
        if more := self.options.get("where"):
            where += f" AND {more}"
        sql = self.table.select(where, self.names)
        schema = pa.schema([self.table.schema.field(name) for name in self.names])
        yield from executor.read(sql, schema)


class BatchReader(_RangeReader, DataSourceReader):
    """Read a table in ranges of equal length between two keys."""

    def partitions(self) -> list[InputPartition]:
        """Return the ranges."""
        low = int(self.options.get("low", 0))
        high = int(self.options.get("high", tables.LARGEST_KEY))
        # Without any partition Spark would create one of its own, which has no range.
        return list(split(low, high, self.ranges)) or [KeyRange(low, low)]


class StreamReader(_RangeReader, DataSourceStreamReader):
    """Read new rows up to the high watermark. An offset is the first key not read yet."""

    def initialOffset(self) -> dict[str, int]:
        """The first offset."""
        return {"key": int(self.options.get("low", 0))}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The offset up to which all rows are readable."""
        lag = timedelta(seconds=int(self.options.get("lag_s", 60)))
        database = Database(settings.get(settings.READ_URL))
        try:
            # Never backwards: the clock may have been set.
            return {"key": max(start["key"], tables.first_key(database.readable_until(lag)))}
        finally:
            database.close()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the ranges between two offsets; none if the high watermark is below the start."""
        return list(split(start["key"], end["key"], self.ranges))


def split(low: int, high: int, count: int) -> Iterator[KeyRange]:
    """Split ``[low, high)`` into about ``count`` equal ranges."""
    step = max(1, -(-(high - low) // count))
    for start in range(low, high, step):
        yield KeyRange(start, min(start + step, high))


def spark_schema(table: Table, names: tuple[str, ...] = ()) -> StructType:
    """Return a table's columns, or the named ones, as Spark types."""
    fields = [table.schema.field(name) for name in names or table.schema.names]
    return from_arrow_schema(pa.schema(fields))


def _table(options: Mapping[str, Any]) -> Table:
    name = options.get("table", "")
    if name not in tables.BY_NAME:
        raise ValueError(f"No table {name!r}: {', '.join(tables.BY_NAME)}.")
    return tables.BY_NAME[name]
