"""Totals: what rows come to, in any database and in any file alike; equal totals are equal rows.

Keys are added up by their remainder: sums of keys would leave 64 bits.
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
"""Bytes of bodies that there are; absent where they are not archived."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Total:
    """A sum over rows."""

    sql: str | None
    """Of one row, in the tables; None where they are not asked: no row ever changes in this, and
    to fetch each one would take longer than to archive it. Their keys stand in an index."""
    column: str
    """In a file."""
    of: Callable[[pa.RecordBatch], int]


def _sum(column: str, sql: str | None) -> Total:
    return Total(sql, column, lambda batch: int(pc.sum(batch.column(column)).as_py() or 0))


def _keys(sql: str) -> Total:
    return Total(f"{sql} % {PRIME}", "id", lambda batch: int((numbers(batch, "id") % PRIME).sum()))


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
ARCHIVED = {
    "deliveries": tables.DELIVERIES,
    "attempts": tables.ATTEMPTS_OF_DELIVERIES,
    "messages": tables.WHOLE_MESSAGES,
}
"""How each table is read for the lake."""


def names(table: str, keep_bodies: bool) -> set[str]:
    """Those that a file of the table has."""
    left_out = set() if keep_bodies else {BODIES}
    return {ROWS, *TOTALS[table]} - left_out


def of_batch(table: str, batch: pa.RecordBatch) -> dict[str, int]:
    """Of rows in memory, as far as they have the columns."""
    known = set(batch.schema.names)
    sums = {name: total.of(batch) for name, total in TOTALS[table].items() if total.column in known}
    return {ROWS: batch.num_rows, **sums}


def of_file(table: str, path: Path, names: Collection[str]) -> dict[str, int]:
    """Of the rows that a file gives back, those totals alone that are named."""
    asked = {name: total for name, total in TOTALS[table].items() if name in names}
    columns = sorted({total.column for total in asked.values()})
    found = dict.fromkeys(names, 0)
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            for batch in file.read_row_group(group, columns).to_batches():
                found[ROWS] += batch.num_rows
                for name, total in asked.items():
                    found[name] += total.of(batch)
    return found


def of_tables(table: str, where: str, source: str = "") -> dict[str, int]:
    """Of rows in the database, as far as it is asked; on an executor.

    ``source`` is a FROM clause in the place of the one by which the table is archived.
    """
    sums = {name: f"SUM({total.sql})" for name, total in TOTALS[table].items() if total.sql}
    every = {ROWS: "COUNT(*)", **sums}
    # Sums are decimals to MySQL. SQLite takes any word for a type, and leaves whole numbers whole.
    shown = ", ".join(
        f"CAST(COALESCE({sql}, 0) AS SIGNED) AS of_{name}" for name, sql in every.items()
    )
    schema = pa.schema([(name, pa.int64()) for name in every])
    sql = f"SELECT {shown} FROM {source or ARCHIVED[table].source} WHERE {where}"
    (batch,) = executor.read(sql, schema)
    (row,) = batch.to_pylist()
    return {name: int(value) for name, value in row.items()}


def numbers(batch: pa.RecordBatch, column: str) -> Numbers:
    """A column of whole numbers without gaps."""
    found: Any = batch.column(column).to_numpy(zero_copy_only=False)
    return np.asarray(found, dtype=np.int64)
