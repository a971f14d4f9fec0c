"""Erasing: files of the lake without the rows of some messages, under their old names.

A segment is taken back to the state in which rows have to leave its files. From then on the
archive too finishes what was begun here: whoever is killed leaves no file unknown to the ledger.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import failpoints
from pipeline.broker.database import Database
from pipeline.lake import export, layout, parquet
from pipeline.lake.eligible import MESSAGES
from pipeline.lake.ledger import AMENDING, PRUNED, File, Ledger, Segment

OWNER = {"messages": "id", "deliveries": "message_id", "attempts": "message_id"}
"""Where a table's files have the key of the message."""
ASIDE = ".anew"
"""Not the archive's own ending: it clears away what it has written itself."""
Receipts = list[dict[str, Any]]
"""Of each file: its table and path, rows that went, SHA-256 before and after."""


def recover(ledger: Ledger) -> None:
    """Complete interrupted erasures of the ledger; delete temporary files that it does not know."""
    for segment in ledger.having(AMENDING):
        # The broker leaves one in this state only when it deleted fewer rows than there were.
        if segment.deleted >= segment.rows:
            ledger.publish(segment)
            _end(ledger, segment, segment.files)
    # Older versions wrote beside the file's place.
    for path in (
        *(ledger.folder / layout.STAGING).glob(f"*{ASIDE}"),
        *ledger.folder.glob(f"*/day=*/*{ASIDE}"),
    ):
        layout.remove(ledger.folder, str(path.relative_to(ledger.folder)))


def touched(ledger: Ledger, paths: set[str]) -> list[Segment]:
    """Segments that are in the lake alone and have one of the files; messages last.

    By a message its deliveries are found, also by a run that goes on with this one.
    """
    found = [
        segment
        for segment in ledger.having(PRUNED)
        if any(file.path in paths for file in segment.files)
    ]
    return sorted(found, key=lambda segment: (segment.kind == MESSAGES, segment.id))


def erase(
    ledger: Ledger,
    segment: Segment,
    keys: Sequence[int],
    run_id: int,
    note: Callable[[Receipts], None],
) -> Receipts:
    """Take the rows of these messages out of a segment's files; what became of each of them.

    ``note`` writes that down in the transaction from which on it happens, whoever is killed.
    """
    gone = pa.array(keys, pa.int64())
    files: list[File] = []
    receipts: Receipts = []
    for file in segment.files:
        smaller = _without(ledger.folder, file, gone, run_id)
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
    if receipts and ledger.reopened(segment, files, lambda: note(receipts)):
        _end(ledger, segment, files)
        failpoints.reach("after_erase")
        return receipts
    for file in files:
        if file.tmp.endswith(ASIDE):
            layout.remove(ledger.folder, file.tmp)
    return []


def in_tables(database: Database, keys: Sequence[int]) -> int:
    """How many of these messages the broker's tables still have."""
    number = 0
    for start in range(0, len(keys), 500):
        listed = ", ".join(str(int(key)) for key in keys[start : start + 500])
        sql = f"SELECT COUNT(*) FROM channels_app_message WHERE id IN ({listed})"
        number += int(database.read(sql)[0][0])
    return number


def _end(ledger: Ledger, segment: Segment, files: Sequence[File]) -> None:
    own = [file.rows for file in files if file.table == segment.tables[0]]
    ledger.ended(segment, files, sum(own))


def _without(folder: Path, file: File, gone: pa.Array, run_id: int) -> File | None:
    """The file without them: the same where none is in it, None when nothing would be left."""
    if not file.rows:
        return file
    column = OWNER[file.table]
    with pq.ParquetFile(folder / file.path) as old:
        parts = [
            pc.sum(pc.is_in(old.read_row_group(place, [column])[column], gone)).as_py() or 0
            for place in range(old.num_row_groups)
        ]
        if not any(parts):
            return file
        tmp = layout.aside(file.path, run_id, ASIDE)
        written = export.Written()
        # As the file has it: it may be older than a column of today's tables.
        with parquet.writer(folder / tmp, old.schema_arrow) as new:
            for place in range(old.num_row_groups):
                group = old.read_row_group(place)
                group = group.filter(pc.invert(pc.is_in(group[column], gone))).combine_chunks()
                if group.num_rows:
                    new.write_table(group)
                    for batch in group.to_batches():
                        written.add(file.table, batch)
    if not written.rows:
        layout.remove(folder, tmp)
        return None
    return File(**export.described(folder, file.table, file.path, tmp, written, file.totals))
