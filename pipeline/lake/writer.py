"""Write a segment's rows into Parquet files and check files, on executors.

Errors of the lake are returned as sentences that an operator can act on.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.broker import executor, runs
from pipeline.broker.tables import Table
from pipeline.lake import attempts, eligible, layout, totals
from pipeline.lake.attempts import SegmentDeliveries
from pipeline.lake.eligible import Cutoffs
from pipeline.lake.totals import Numbers

GROUP_ROWS = 100_000
GROUP_BYTES = 32 << 20
"""A row group ends at this size or at GROUP_ROWS, whichever comes first."""
BODY_ROWS = 200
"""Rows with bodies in memory at once."""
BODIES = ("body", "body_key_id")


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a new file.

    Keys and instants rise from row to row and never repeat: delta encoding takes a third of a
    dictionary's time, and a tenth of its size. All other columns repeat.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rising = [field.name for field in schema if _rises(field)]
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=[name for name in schema.names if name not in rising],
        column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
    )


@dataclass(slots=True)
class FileStats:
    """Row count, key range and totals of a file."""

    rows: int = 0
    first: int = 0
    last: int = 0
    sums: dict[str, int] = field(default_factory=dict)

    def add(self, table: str, batch: pa.RecordBatch) -> None:
        keys = totals.numbers(batch, "id")
        low, high = int(keys.min()), int(keys.max())
        self.first = min(self.first, low) if self.rows else low
        self.last = max(self.last, high)
        self.rows += batch.num_rows
        for name, value in totals.of_batch(table, batch).items():
            self.sums[name] = self.sums.get(name, 0) + value


def export(task: str) -> str:
    """Write a segment's files; returns their manifest."""
    return _with_lake_errors(_export, task)


def check(task: str) -> str:
    """Check that files are complete and equal to the tables' current rows."""
    return _with_lake_errors(_check, task)


def file_entry(
    folder: Path, table: str, path: str, tmp: str, written: FileStats, counted: Collection[str]
) -> dict[str, Any]:
    """Sync a written file to disk; returns its entry in the ledger."""
    descriptor = os.open(folder / tmp, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    return {
        "table": table,
        "path": path,
        "tmp": tmp,
        "rows": written.rows,
        "bytes": size,
        "sha256": layout.sha256(folder / tmp),
        "first": written.first,
        "last": written.last,
        "totals": {name: value for name, value in written.sums.items() if name in counted},
    }


def _rises(field: pa.Field) -> bool:
    is_key = pa.types.is_int64(field.type) and field.name in {"id", "message_id", "delivery_id"}
    return is_key or pa.types.is_timestamp(field.type)


def _with_lake_errors(work: Callable[[dict[str, Any]], dict[str, Any]], task: str) -> str:
    try:
        result = work(json.loads(task))
    except OSError as error:
        # pyarrow raises it also for a file that is not Parquet.
        result = {"error": f"{error.strerror or error} ({error.filename or 'lake'})"}
    return json.dumps(result)


def _export(task: dict[str, Any]) -> dict[str, Any]:
    """Write a segment's files, its own table first: the parts count the attempts per delivery."""
    files: list[dict[str, Any]] = []
    parts, deliveries = _DeletionParts(task["part_rows"], task["part_bytes"]), SegmentDeliveries()
    for name in task["tables"]:
        path = Path(task["lake"]) / task["tmp"][name]
        try:
            written = _write(task, name, path, parts, deliveries)
            if written.rows:
                names = task["path"][name], task["tmp"][name]
                counted = totals.names(name, task["keep_bodies"])
                files.append(file_entry(Path(task["lake"]), name, *names, written, counted))
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise
        if not files:
            break  # No row is eligible any more: a replay took them.
    runs.failpoint("in_export")
    return {"files": files, "parts": parts.rows if files else []}


class _DeletionParts:
    """Parts of a segment that the broker deletes in one transaction each, by key.

    Each is ``[last key, rows, keys, versions, attempts]``. The broker compares these sums with the
    rows that it finds, so that it deletes only rows that are in the files.
    """

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        """``most_bytes`` limits bodies and responses, unless a single row has more."""
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self._batches: list[tuple[Numbers, Numbers, Numbers]] = []
        self._keys = self._versions = self._bytes = self._attempts = np.empty(0, np.int64)

    def add(self, name: str, batch: pa.RecordBatch) -> None:
        if name == "attempts":
            self._add_attempts(batch)
            return
        keys, versions = totals.numbers(batch, "id"), totals.numbers(batch, "version")
        is_message = name == "messages"
        sizes = totals.numbers(batch, "body_bytes") if is_message else np.zeros_like(keys)
        self._batches.append((keys, versions, sizes))

    def close(self, name: str) -> None:
        """Finish a table: no more of its rows will come."""
        if name != "attempts" and self._batches:
            columns = zip(*self._batches, strict=True)
            self._keys, self._versions, self._bytes = (np.concatenate(column) for column in columns)
            self._attempts = np.zeros_like(self._keys)
            self._batches.clear()

    def _add_attempts(self, batch: pa.RecordBatch) -> None:
        deliveries = totals.numbers(batch, "delivery_id")
        places = np.searchsorted(self._keys, deliveries)
        # Not of deliveries that became eligible between two queries.
        is_ours = places < len(self._keys)
        is_ours[is_ours] = self._keys[places[is_ours]] == deliveries[is_ours]
        sizes = sum(
            pc.binary_length(batch.column(name)).fill_null(0).to_numpy(zero_copy_only=False)
            for name in ("answer_headers", "answer_excerpt")
        )
        np.add.at(self._attempts, places[is_ours], 1)
        np.add.at(self._bytes, places[is_ours], sizes[is_ours])

    @property
    def rows(self) -> list[list[int]]:
        """The parts, as the ledger stores them."""
        parts = []
        sizes = np.cumsum(self._bytes)
        start = 0
        while start < len(self._keys):
            before = sizes[start - 1] if start else 0
            fitting = int(np.searchsorted(sizes, before + self._most_bytes, side="right"))
            end = min(max(fitting, start + 1), start + self._most_rows)
            keys, versions = self._keys[start:end], self._versions[start:end]
            sums = [keys % totals.PRIME, versions, self._attempts[start:end]]
            parts.append([int(keys[-1]), len(keys), *(int(column.sum()) for column in sums)])
            start = end
        return parts


def _write(
    task: dict[str, Any],
    name: str,
    path: Path,
    parts: "_DeletionParts",
    deliveries: SegmentDeliveries,
) -> FileStats:
    table = totals.ARCHIVED[name]
    written = FileStats()
    writer: pq.ParquetWriter | None = None
    try:
        for group in _groups(_rows(task, name, table, deliveries)):
            writer = writer or open_writer(path, table.schema)
            writer.write_table(group)
            for batch in group.to_batches():
                written.add(name, batch)
                parts.add(name, batch)
                if name == "deliveries":
                    deliveries.add(batch)
    finally:
        if writer is not None:
            writer.close()
    parts.close(name)
    return written


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    batch_group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        batch_group.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield pa.Table.from_batches(batch_group).combine_chunks()
            batch_group, rows, size = [], 0, 0
    if batch_group:
        yield pa.Table.from_batches(batch_group).combine_chunks()


def _rows(
    task: dict[str, Any], name: str, table: Table, deliveries: SegmentDeliveries
) -> Iterator[pa.RecordBatch]:
    """Yield the segment's rows of a table."""
    kind = task["kind"]
    where = eligible.where(kind, task["low"], task["high"], Cutoffs.from_json(task["cutoffs"]))
    if name == "attempts":
        # A second export, after files differed from the tables, uses the plain join.
        yield from attempts.joined(where) if task["files"] else attempts.read(deliveries, where)
        return
    where += " ORDER BY " + ("d.id" if kind == eligible.DELIVERIES else "m.id")
    if name != "messages":
        yield from executor.read(table.select(where), table.schema)
        return
    if task["keep_bodies"]:
        yield from executor.read(table.select(where), table.schema, BODY_ROWS)
        return
    names = [column for column in table.schema.names if column not in BODIES]
    schema = pa.schema([table.schema.field(column) for column in names])
    for batch in executor.read(table.select(where, names), schema):
        for column in BODIES:
            nothing = pa.nulls(batch.num_rows, table.schema.field(column).type)
            batch = batch.append_column(column, nothing)
        yield batch.cast(table.schema)


def _check(task: dict[str, Any]) -> dict[str, Any]:
    """Compare the files with what was written, and the tables with the files."""
    for file in task["files"]:
        path = Path(task["lake"]) / file["path"]
        if not path.exists() or layout.sha256(path) != file["sha256"]:
            return {"differs": f"{file['path']} is not what was written"}
        if (rows := totals.of_file(file["table"], path, file["totals"])) != file["totals"]:
            return {"differs": f"{file['path']} has {rows}, not {file['totals']}"}
    file_totals = {file["table"]: file["totals"] for file in task["files"]}
    for name in task["tables"]:
        sums: dict[str, int] = {}
        for sums in _table_totals(task, name):
            if _is_same(sums, file_totals.get(name)):
                break
        else:
            return {"differs": f"{name}: the tables have {sums}, the file {file_totals.get(name)}"}
    return {}


def _table_totals(task: dict[str, Any], name: str) -> Iterator[dict[str, int]]:
    """Yield totals of a table's rows of the segment; twice where the first may be wrong."""
    low, high, limits = task["low"], task["high"], Cutoffs.from_json(task["cutoffs"])
    if name == "attempts":
        yield from attempts.totals_of(low, high, limits, task["files"][0]["rows"])
    else:
        yield totals.of_tables(name, eligible.where(task["kind"], low, high, limits))


def _is_same(sums: dict[str, int], wanted: dict[str, int] | None) -> bool:
    """Compare totals; without a file there must be no rows."""
    if wanted is None:
        return not any(sums.values())
    # Compare common totals only: files without bodies lack theirs, and tables lack those that never
    # change.
    return all(sums[total] == wanted[total] for total in sums.keys() & wanted.keys())
