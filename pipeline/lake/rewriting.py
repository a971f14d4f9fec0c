"""Amend: take rows out of files that turned out to be still in the tables.

After a segment was verified rows may leave it: a replay sends a dead letter again. The broker does
not delete these, and the lake must not have them either. Which they are is asked where the broker
deletes, never from a replica: what that still has may be nowhere else.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.broker.database import Database
from pipeline.lake import export, layout, parquet
from pipeline.lake.eligible import DELIVERIES
from pipeline.lake.ledger import File, Segment

PAGE = 50_000
OWN = {
    "deliveries": ("delivery_delivery", "id"),
    "attempts": ("delivery_delivery", "delivery_id"),
    "messages": ("channels_app_message", "id"),
}
"""By the table of a file: whose keys say that a row is still there, and where the file has them."""


def rewrite(database: Database, folder: Path, segment: Segment, run_id: int) -> list[File]:
    """Write smaller files beside those that have to lose rows; returns all that are to stay."""
    left = pa.array(_left(database, segment), pa.int64())
    files = []
    for file in segment.files:
        smaller = _without(folder, file, left, run_id)
        if smaller is not None:
            files.append(smaller)
    return files


def _left(database: Database, segment: Segment) -> list[int]:
    """Keys of the segment's range that the table has, and not because the lake had them."""
    table, _ = OWN[segment.tables[0]]
    brought_back = "SELECT 1 FROM delivery_restoredmessage r WHERE r.message_id = x.id"
    own = "" if segment.kind == DELIVERIES else f"AND NOT EXISTS ({brought_back}) "
    found: list[int] = []
    after = segment.low - 1
    while page := database.read(
        f"SELECT x.id FROM {table} x WHERE x.id > %s AND x.id < %s {own}ORDER BY 1 LIMIT {PAGE}",
        [after, segment.high],
    ):
        found += [int(key) for (key,) in page]
        after = found[-1]
    return found


def _without(folder: Path, file: File, left: pa.Array, run_id: int) -> File | None:
    """The file without rows of these keys; None when nothing would be in it."""
    tmp = layout.aside(file.path, run_id)
    written = export.Written()
    with (
        pq.ParquetFile(folder / file.path) as old,
        # As the file has it: it may be older than a column of today's tables.
        parquet.writer(folder / tmp, old.schema_arrow) as new,
    ):
        for group in _groups(old, OWN[file.table][1], left):
            new.write_table(group)
            for batch in group.to_batches():
                written.add(file.table, batch)
    if not written.rows:
        layout.remove(folder, tmp)
        return None
    if written.rows == file.rows:
        layout.remove(folder, tmp)
        return file
    return File(**export.described(folder, file.table, file.path, tmp, written, file.totals))


def _groups(old: pq.ParquetFile, column: str, left: pa.Array) -> Iterator[pa.Table]:
    for place in range(old.num_row_groups):
        group = old.read_row_group(place)
        kept = group.filter(pc.invert(pc.is_in(group[column], left)))
        if kept.num_rows:
            yield kept.combine_chunks()
