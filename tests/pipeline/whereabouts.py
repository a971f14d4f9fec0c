"""Helpers of the archive tests: find every row in the tables or the lake."""

import hashlib
from collections import Counter as Tally
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from django.db import connection

from delivery.maintenance import archived, counters
from delivery.models import Delivery, Segment
from pipeline.broker.database import instant
from pipeline.lake import totals

Rows = dict[str, dict[int, dict[str, Any]]]
"""Rows by table and key."""
SLOT = 3


def in_tables() -> Rows:
    """Read all rows from the broker's tables in the archive's form.

    Not with the archive's reader: its SQLite library and Python's release each other's locks in one
    process.
    """
    found: Rows = {}
    for name, table in totals.ARCHIVED.items():
        with connection.cursor() as cursor:
            cursor.execute(table.select("1 = 1"))
            stored = cursor.fetchall()
        rows = [
            {
                column.name: _plain(value, column.type)
                for column, value in zip(table.columns, row, strict=True)
            }
            for row in stored
        ]
        found[name] = {row["id"]: row for row in rows}
        assert len(rows) == len(found[name])
    return found


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        return instant(value)
    return bytes(value) if pa.types.is_binary(kind) else value


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake's folder, read like any Parquet data set: all files of a table's folder."""

    folder: Path

    def rows(self) -> Rows:
        """All rows; no row may be in two files."""
        found: Rows = {}
        for name in totals.ARCHIVED:
            files = sorted((self.folder / name).glob("day=*/*.parquet"))
            rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
            found[name] = {row["id"]: row for row in rows}
            twice = [key for key, count in Tally(row["id"] for row in rows).items() if count > 1]
            assert not twice, (name, twice)
        return found

    def check(self) -> None:
        """Check that the folder has exactly the files in the ledger."""
        known: dict[str, Any] = {}
        for files in Segment.objects.exclude(state="planned").values_list("files", flat=True):
            known |= {file["path"]: file for file in files}
        found = {
            str(path.relative_to(self.folder)): path
            for path in self.folder.rglob("*")
            if path.is_file() and path.name != "_hookstation"
        }
        assert set(found) == set(known)
        for name, path in found.items():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == known[name]["sha256"]
            assert pq.ParquetFile(path).metadata.num_rows == known[name]["rows"]


def assert_once(before: Rows, lake: Lake) -> None:
    """Check that each row of ``before`` is unchanged and either in the tables or in the lake."""
    tables, files = in_tables(), lake.rows()
    for name, rows in before.items():
        assert not set(tables[name]) & set(files[name]), name
        together = tables[name] | files[name]
        assert set(together) == set(rows), name
        different = [key for key, row in rows.items() if together[key] != row]
        assert not different, (name, rows[different[0]], together[different[0]])
    lake.check()


def prune() -> int:
    """Prune all rows that the broker may delete now; return how many."""
    return sum(archived.prune(SLOT))


def states() -> dict[str, int]:
    """Count segments by state."""
    return dict(Tally(Segment.objects.values_list("state", flat=True)))


def requeue(key: int) -> None:
    """Change a delivery as a replay does."""
    row = Delivery.objects.get(id=key)
    Delivery.objects.filter(id=key).update(
        state="queued",
        reason="replayed",
        finished_at=None,
        due_at=datetime.now(UTC),
        version=row.version + 1,
    )
    counters.recount(row.consumer_id)
