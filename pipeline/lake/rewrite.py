"""Rewrite files of the lake without some of their rows, under the same names.

Erasing removes the rows of some messages. The segment returns to the state in which rows must leave
its files, so that the archive job can finish an interrupted erasure, and a killed job leaves no
file that the ledger does not know. Rows also leave a verified segment when a replay sends a dead
letter again. The broker keeps such rows in its tables, so the lake must not have them. The primary
database tells which rows they are, never a replica.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.broker import runs
from pipeline.broker.database import Database
from pipeline.lake import layout, writer
from pipeline.lake.eligible import DELIVERIES, MESSAGES
from pipeline.lake.ledger import AMENDING, PRUNED, File, Ledger, Segment

MESSAGE_COLUMNS = {"messages": "id", "deliveries": "message_id", "attempts": "message_id"}
"""By table: the column of its files with the key of the message."""
ERASURE_SUFFIX = ".anew"
"""Differs from the archive's own extension, because the archive deletes its own unfinished
files."""
Receipts = list[dict[str, Any]]
"""Of each file: its table and path, the number of removed rows, SHA-256 before and after."""
PAGE_ROWS = 50_000
KEY_COLUMNS = {
    "deliveries": ("delivery_delivery", "id"),
    "attempts": ("delivery_delivery", "delivery_id"),
    "messages": ("channels_app_message", "id"),
}
"""By the table of a file: the table whose keys show that a row is still there, and the column of
the file with these keys."""


def recover(ledger: Ledger) -> None:
    """Complete interrupted erasures of the ledger; delete temporary files that it does not know."""
    for segment in ledger.in_states(AMENDING):
        # The broker leaves a segment in this state only when it deleted fewer rows than planned.
        if segment.deleted >= segment.rows:
            ledger.publish(segment)
            _complete(ledger, segment, segment.files)
    # Older versions wrote beside the file's place.
    for path in (
        *(ledger.folder / layout.STAGING).glob(f"*{ERASURE_SUFFIX}"),
        *ledger.folder.glob(f"*/day=*/*{ERASURE_SUFFIX}"),
    ):
        layout.remove(ledger.folder, str(path.relative_to(ledger.folder)))


def segments_with(ledger: Ledger, paths: set[str]) -> list[Segment]:
    """Return segments that are in the lake alone and have one of the files, messages last.

    The deliveries are found by their messages, also by the run that continues this one.
    """
    segments = [
        segment
        for segment in ledger.in_states(PRUNED)
        if any(file.path in paths for file in segment.files)
    ]
    return sorted(segments, key=lambda segment: (segment.kind == MESSAGES, segment.id))


def erase(
    ledger: Ledger,
    segment: Segment,
    keys: Sequence[int],
    run_id: int,
    record: Callable[[Receipts], None],
) -> Receipts:
    """Remove the rows of these messages from a segment's files; returns the changes of each file.

    ``record`` records them in the transaction that commits the change, also if this process is
    killed.
    """
    erased = pa.array(keys, pa.int64())
    files: list[File] = []
    receipts: Receipts = []
    for file in segment.files:
        smaller = _without_messages(ledger.folder, file, erased, run_id)
        if smaller is not None:
            files.append(smaller)
        if smaller is not file:
            receipts.append(
                {
                    "table": file.table,
                    "path": file.path,
                    "rows": file.rows - (smaller.rows if smaller else 0),
                    "before": file.sha256,
                    "after": smaller.sha256 if smaller else "",
                }
            )
    if receipts and ledger.record_erasure(segment, files, lambda: record(receipts)):
        _complete(ledger, segment, files)
        runs.failpoint("after_erase")
        return receipts
    for file in files:
        if file.tmp.endswith(ERASURE_SUFFIX):
            layout.remove(ledger.folder, file.tmp)
    return []


def count_in_tables(database: Database, keys: Sequence[int]) -> int:
    """Return how many of these messages are still in the broker's tables."""
    number = 0
    for start in range(0, len(keys), 500):
        listed = ", ".join(str(int(key)) for key in keys[start : start + 500])
        sql = f"SELECT COUNT(*) FROM channels_app_message WHERE id IN ({listed})"
        number += int(database.read(sql)[0][0])
    return number


def remove_live_rows(database: Database, folder: Path, segment: Segment, run_id: int) -> list[File]:
    """Write smaller files beside those that lose rows; returns all files that remain."""
    live = pa.array(_live_keys(database, segment), pa.int64())
    files = []
    for file in segment.files:
        smaller = _without_keys(folder, file, live, run_id)
        if smaller is not None:
            files.append(smaller)
    return files


def _complete(ledger: Ledger, segment: Segment, files: Sequence[File]) -> None:
    own = [file.rows for file in files if file.table == segment.tables[0]]
    ledger.complete(segment, files, sum(own))


def _without_messages(folder: Path, file: File, erased: pa.Array, run_id: int) -> File | None:
    """Return the file without these messages; None if no row would remain."""
    if not file.rows:
        return file
    column = MESSAGE_COLUMNS[file.table]
    with pq.ParquetFile(folder / file.path) as old:
        parts = [
            pc.sum(pc.is_in(old.read_row_group(place, [column])[column], erased)).as_py() or 0
            for place in range(old.num_row_groups)
        ]
        if not any(parts):
            return file
        tmp = layout.staging_path(file.path, run_id, ERASURE_SUFFIX)
        written = writer.FileStats()
        # The file's own schema, which may lack a newer column of the tables.
        with writer.open_writer(folder / tmp, old.schema_arrow) as new:
            for place in range(old.num_row_groups):
                group = old.read_row_group(place)
                group = group.filter(pc.invert(pc.is_in(group[column], erased))).combine_chunks()
                if group.num_rows:
                    new.write_table(group)
                    for batch in group.to_batches():
                        written.add(file.table, batch)
    if not written.rows:
        layout.remove(folder, tmp)
        return None
    return File(**writer.file_entry(folder, file.table, file.path, tmp, written, file.totals))


def _live_keys(database: Database, segment: Segment) -> list[int]:
    """Return the keys of the segment's range in the table, without rows restored from the lake."""
    table, _ = KEY_COLUMNS[segment.tables[0]]
    brought_back = "SELECT 1 FROM delivery_restoredmessage r WHERE r.message_id = x.id"
    own = "" if segment.kind == DELIVERIES else f"AND NOT EXISTS ({brought_back}) "
    keys: list[int] = []
    after = segment.low - 1
    while page := database.read(
        f"SELECT x.id FROM {table} x WHERE x.id > %s AND x.id < %s {own}"
        f"ORDER BY 1 LIMIT {PAGE_ROWS}",
        [after, segment.high],
    ):
        keys += [int(key) for (key,) in page]
        after = keys[-1]
    return keys


def _without_keys(folder: Path, file: File, live: pa.Array, run_id: int) -> File | None:
    """Return the file without rows of these keys; None if no row would remain."""
    tmp = layout.staging_path(file.path, run_id)
    written = writer.FileStats()
    with (
        pq.ParquetFile(folder / file.path) as old,
        # The file's own schema, which may lack a newer column of the tables.
        writer.open_writer(folder / tmp, old.schema_arrow) as new,
    ):
        for group in _groups(old, KEY_COLUMNS[file.table][1], live):
            new.write_table(group)
            for batch in group.to_batches():
                written.add(file.table, batch)
    if not written.rows:
        layout.remove(folder, tmp)
        return None
    if written.rows == file.rows:
        layout.remove(folder, tmp)
        return file
    return File(**writer.file_entry(folder, file.table, file.path, tmp, written, file.totals))


def _groups(old: pq.ParquetFile, column: str, live: pa.Array) -> Iterator[pa.Table]:
    for place in range(old.num_row_groups):
        group = old.read_row_group(place)
        kept = group.filter(pc.invert(pc.is_in(group[column], live)))
        if kept.num_rows:
            yield kept.combine_chunks()
