"""Keep the segments of the archive, and change their states for the pipeline.

A change happens once: it names the state that it starts from, and its run must hold the lock. So a
run that was stalled and resumes later changes nothing.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

from pipeline.broker import runs
from pipeline.broker.database import Database
from pipeline.broker.runs import Run
from pipeline.lake import layout
from pipeline.lake.eligible import DELIVERIES, Cutoffs

SEGMENTS = "delivery_segment"
PLANNED, EXPORTED, VERIFIED = "planned", "exported", "verified"
PRUNING, AMENDING, PRUNED = "pruning", "amending", "pruned"
UNFINISHED = (PLANNED, EXPORTED, VERIFIED, PRUNING, AMENDING)
"""States that are not final: all or some of their rows are in the tables."""
FIELDS = "id, kind, day, low, high, cutoffs, state, files, row_count, deleted_count"


@dataclass(frozen=True, slots=True)
class File:
    """One file of a segment."""

    table: str
    path: str
    """Below the lake; it never changes."""
    tmp: str
    """Where it was written before it is moved to its path."""
    rows: int
    bytes: int
    sha256: str
    first: int
    last: int
    """Its highest key; ``first`` is its lowest."""
    totals: dict[str, int]
    """Totals of its rows, equal in every database (totals.py)."""

    def as_json(self) -> dict[str, Any]:
        """Return the form that the ledger stores."""
        return {name: getattr(self, name) for name in File.__slots__}


@dataclass(frozen=True, slots=True)
class Segment:
    """A row of the ledger."""

    id: int
    kind: str
    day: date
    low: int
    high: int
    limits: Cutoffs
    state: str
    files: tuple[File, ...] = ()
    rows: int = 0
    deleted: int = 0

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables whose rows it has, its own table first."""
        return ("deliveries", "attempts") if self.kind == DELIVERIES else ("messages",)


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A planned segment."""

    kind: str
    day: date
    low: int
    high: int
    limits: Cutoffs
    expected: int = field(compare=False, default=0)
    """Rows when they were counted."""


class Ledger:
    """The segments, as one archiving run reads and changes them."""

    def __init__(self, database: Database, run: Run, folder: Path) -> None:
        self.database = database
        self.run = run
        self.folder = folder

    def in_states(self, *states: str) -> list[Segment]:
        """Return segments in these states, oldest first."""
        holes = ", ".join(["%s"] * len(states))
        rows = self.database.read(
            f"SELECT {FIELDS} FROM {SEGMENTS} WHERE kind IN ('deliveries', 'messages') "
            f"AND state IN ({holes}) ORDER BY id",
            states,
        )
        return [_segment(row) for row in rows]

    def has_files(self) -> bool:
        """Whether the lake has files, or may have."""
        return bool(self.database.read(f"SELECT 1 FROM {SEGMENTS} WHERE files <> '[]' LIMIT 1"))

    def days_since(self, at: datetime) -> list[date]:
        """Return the days in which files may have been written since then."""
        holes = ", ".join(["%s"] * len(UNFINISHED))
        rows = self.database.read(
            f"SELECT DISTINCT day FROM {SEGMENTS} WHERE state IN ({holes}) OR exported_at >= %s",
            [*UNFINISHED, at],
        )
        return [_day(day) for (day,) in rows]

    def plan(self, ranges: Iterable[PlannedRange]) -> list[Segment]:
        """Insert the ranges; returns the new segments."""
        with self.database.transaction():
            self.run.require_lock(self.database)
            ((last,),) = self.database.read(f"SELECT COALESCE(MAX(id), 0) FROM {SEGMENTS}")
            self.database.execute_many(
                f"INSERT INTO {SEGMENTS} (kind, day, low, high, cutoffs, state, files, parts, "
                "row_count, byte_count, deleted_count, `cursor`, planned_at) "
                "VALUES (%s, %s, %s, %s, %s, 'planned', '[]', '[]', 0, 0, 0, 0, %s)",
                [
                    [
                        *(each.kind, each.day.isoformat(), each.low, each.high),
                        *(json.dumps(each.limits.as_json()), self.database.now()),
                    ]
                    for each in ranges
                ],
            )
            rows = self.database.read(
                f"SELECT {FIELDS} FROM {SEGMENTS} WHERE id > %s ORDER BY id", [last]
            )
        return [_segment(row) for row in rows]

    def record_export(
        self, segment: Segment, files: Sequence[File], parts: Sequence[Sequence[int]]
    ) -> Segment | None:
        """Record the written files; returns the changed segment, or None if its state had changed.

        A segment without rows is complete.
        """
        rows, state = (files[0].rows, EXPORTED) if files else (0, PRUNED)
        runs.failpoint("before_export_commit")
        moved = self._transition(
            segment,
            PLANNED,
            state,
            files=_json(files),
            parts=json.dumps(parts, separators=(",", ":")),
            row_count=rows,
            byte_count=sum(file.bytes for file in files),
            exported_at=self.database.now(),
        )
        runs.failpoint("after_export_commit")
        if not moved:
            return None
        for file in files:
            layout.publish(self.folder, file.path, file.tmp)
            runs.failpoint("after_publish")
        return replace(segment, state=state, files=tuple(files), rows=rows)

    def record_verification(self, segment: Segment) -> bool:
        """Record that files and tables are equal, so that the broker may delete the rows."""
        runs.failpoint("before_verified")
        moved = self._transition(segment, EXPORTED, VERIFIED, verified_at=self.database.now())
        runs.failpoint("after_verified")
        return moved

    def plan_again(self, segment: Segment) -> bool:
        """Record that the files are wrong, so that the segment is exported again."""
        # Keep the names of the files, which may exist.
        return self._transition(segment, EXPORTED, PLANNED)

    def require_lock(self) -> None:
        """Raises runs.LockLost when another run holds the lock."""
        with self.database.transaction():
            self.run.require_lock(self.database)

    def record_amendment(self, segment: Segment, files: Sequence[File]) -> bool:
        """Record the rewritten files; the state stays until they are at their places."""
        runs.failpoint("before_amend_commit")
        moved = self._transition(segment, AMENDING, AMENDING, files=_json(files))
        runs.failpoint("after_amend_commit")
        if moved:
            for file in files:
                layout.publish(self.folder, file.path, file.tmp)
            runs.failpoint("after_amend_publish")
        return moved

    def record_erasure(
        self, segment: Segment, files: Sequence[File], record: Callable[[], None]
    ) -> bool:
        """Record the rewritten files of a completed segment, which is then being amended.

        ``record`` records the removed rows in the same transaction.
        """
        runs.failpoint("before_reopen_commit")
        moved = self._transition(segment, PRUNED, AMENDING, record, files=_json(files))
        runs.failpoint("after_reopen_commit")
        if moved:
            for file in files:
                layout.publish(self.folder, file.path, file.tmp)
                runs.failpoint("after_reopen_publish")
        return moved

    def complete(self, segment: Segment, files: Sequence[File], rows: int) -> bool:
        """Record that an amended segment is in the lake alone; tables without rows have no file."""
        for table in set(segment.tables) - {file.table for file in files}:
            layout.remove(self.folder, layout.path_of(table, segment.day, segment.id))
        return self._transition(
            segment,
            AMENDING,
            PRUNED,
            row_count=rows,
            byte_count=sum(file.bytes for file in files),
            parts="[]",
            pruned_at=self.database.now(),
        )

    def recover(self) -> None:
        """Move files that an interrupted run recorded; delete those of planned segments."""
        for segment in self.in_states(EXPORTED, AMENDING):
            self.publish(segment)
        for segment in self.in_states(PLANNED):
            for table in segment.tables:
                layout.remove(self.folder, layout.path_of(table, segment.day, segment.id))

    def publish(self, segment: Segment) -> None:
        """Move a segment's recorded files to their places, if its run was killed before it did."""
        for file in segment.files:
            layout.publish(self.folder, file.path, file.tmp)
            if not (self.folder / file.path).exists():
                self._handle_missing_file(segment, file)
                break

    def _handle_missing_file(self, segment: Segment, file: File) -> None:
        if segment.state == AMENDING:
            raise layout.LakeError(
                f"{self.folder / file.path} is missing. Its rows are nowhere else: bring the "
                "lake's folder back from a backup."
            )
        self.plan_again(segment)

    def _transition(
        self,
        segment: Segment,
        state: str,
        to: str,
        record: Callable[[], None] = lambda: None,
        **columns: Any,
    ) -> bool:
        """Change the state by compare-and-set under the run's lock. Raises LockLost.

        ``record`` writes what belongs to the change in the same transaction.
        """
        values = {"state": to, **columns}
        sets = ", ".join(f"{name} = %s" for name in values)
        with self.database.transaction():
            self.run.require_lock(self.database)
            moved = self.database.execute(
                f"UPDATE {SEGMENTS} SET {sets} WHERE id = %s AND state = %s",
                [*values.values(), segment.id, state],
            )
            if moved:
                record()
        return moved == 1


def _segment(row: Sequence[Any]) -> Segment:
    key, kind, day, low, high, limits, state, files, rows, deleted = row
    return Segment(
        *(int(key), kind, _day(day), int(low), int(high)),
        Cutoffs.from_json(json.loads(limits)),
        state,
        tuple(File(**file) for file in json.loads(files)),
        int(rows),
        int(deleted),
    )


def _day(value: Any) -> date:
    return date.fromisoformat(value) if isinstance(value, str) else value


def _json(files: Sequence[File]) -> str:
    return json.dumps([file.as_json() for file in files])
