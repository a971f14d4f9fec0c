"""Compute totals of rows, alike in every database and file, to compare rows.

Keys are added up by their remainders, since sums of keys would exceed 64 bits.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.broker import executor, tables

PRIME = 2_147_483_647
ROWS = "row_total"
BODIES = "bodies"
"""Bytes of bodies; absent where bodies are not archived."""

Numbers = npt.NDArray[np.int64]
ARCHIVED = {
    "deliveries": tables.DELIVERIES,
    "attempts": tables.ATTEMPTS_OF_DELIVERIES,
    "messages": tables.MESSAGES_WITH_BODIES,
}
"""By name: the table as it is read for the lake."""


@dataclass(frozen=True, slots=True)
class Total:
    """A sum over rows."""

    sql: str | None
    """SQL of one row's value. None where the tables are not queried: the column never changes,
    and reading each row would take longer than archiving it. An index has the keys."""
    column: str
    """Column in a file."""
    of: Callable[[pa.RecordBatch], int]


def _sum(column: str, sql: str | None) -> Total:
    return Total(sql, column, lambda batch: int(pc.sum(batch.column(column)).as_py() or 0))


def _keys(sql: str) -> Total:
    return Total(f"{sql} % {PRIME}", "id", lambda batch: int((numbers(batch, "id") % PRIME).sum()))


def numbers(batch: pa.RecordBatch, column: str) -> Numbers:
    """Return a column of integers without nulls."""
    values: Any = batch.column(column).to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.int64)


TOTALS: Mapping[str, Mapping[str, Total]] = {
    "deliveries": {"keys": _keys("d.id"), "versions": _sum("version", "d.version")},
    "attempts": {
        "keys": _keys("a.id"),
        "numbers": _sum("number", None),
        "total_ms": _sum("total_ms", None),
    },
    "messages": {
        "keys": _keys("m.id"),
        "versions": _sum("version", "m.version"),
        "body_bytes": _sum("body_bytes", "m.body_bytes"),
        BODIES: Total(
            "LENGTH(b.data)",
            "body",
            lambda batch: int(pc.sum(pc.binary_length(batch.column("body"))).as_py() or 0),
        ),
    },
}


def names(table: str, keep_bodies: bool) -> set[str]:
    """Return the totals that a file of the table has."""
    left_out = set() if keep_bodies else {BODIES}
    return {ROWS, *TOTALS[table]} - left_out


def of_batch(table: str, batch: pa.RecordBatch) -> dict[str, int]:
    """Return totals of rows in memory, for the columns that they have."""
    columns = set(batch.schema.names)
    sums = {
        name: total.of(batch) for name, total in TOTALS[table].items() if total.column in columns
    }
    return {ROWS: batch.num_rows, **sums}


def of_file(table: str, path: Path, names: Collection[str]) -> dict[str, int]:
    """Return the named totals of a file's rows."""
    selected = {name: total for name, total in TOTALS[table].items() if name in names}
    columns = sorted({total.column for total in selected.values()})
    sums = dict.fromkeys(names, 0)
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            for batch in file.read_row_group(group, columns).to_batches():
                sums[ROWS] += batch.num_rows
                for name, total in selected.items():
                    sums[name] += total.of(batch)
    return sums


def of_tables(table: str, where: str, source: str = "") -> dict[str, int]:
    """Return totals of rows in the database, where they are defined; runs on an executor.

    ``source`` replaces the FROM clause by which the table is archived.
    """
    sums = {name: f"SUM({total.sql})" for name, total in TOTALS[table].items() if total.sql}
    every = {ROWS: "COUNT(*)", **sums}
    # MySQL returns sums as decimals. SQLite accepts any type name, and keeps whole numbers.
    shown = ", ".join(
        f"CAST(COALESCE({sql}, 0) AS SIGNED) AS of_{name}" for name, sql in every.items()
    )
    schema = pa.schema([(name, pa.int64()) for name in every])
    sql = f"SELECT {shown} FROM {source or ARCHIVED[table].source} WHERE {where}"
    (batch,) = executor.read(sql, schema)
    (row,) = batch.to_pylist()
    return {name: int(value) for name, value in row.items()}
