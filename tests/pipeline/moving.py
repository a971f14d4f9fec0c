"""A lake for tests: rows move from the broker's tables to files, as the archive moves them."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from django.db.models import F, QuerySet

from channels_app.models import Message
from delivery.models import Attempt, Delivery, Segment
from pipeline.broker import tables
from pipeline.broker.tables import Table
from pipeline.settings import Settings


def none(key: int) -> bool:
    """Let no row stay in the tables."""
    return False


def move(
    chosen: Settings, kind: str, until: datetime, *, stays: Callable[[int], bool] = none
) -> Segment:
    """Move rows with older keys to a segment; rows that ``stays`` keeps are not pruned yet."""
    high = tables.first_key(until)
    files, left = [], 0
    for table, found in _rows(kind, high):
        keys = [row["id"] for row in found.values("id")]
        files.append(_file(chosen, table, found))
        gone = [key for key in keys if not stays(key)]
        left += len(keys) - len(gone)
        for start in range(0, len(gone), 500):
            found.model.objects.filter(pk__in=gone[start : start + 500])._raw_delete("default")
    return Segment.objects.create(
        kind=kind,
        day=until.date(),
        low=0,
        high=high,
        state="pruning" if left else "pruned",
        files=files,
        planned_at=datetime.now(UTC),
    )


def _rows(kind: str, high: int) -> list[tuple[Table, QuerySet[Any]]]:
    """The rows to move by table: attempts first, as they read fields of their deliveries."""
    if kind == "messages":
        return [(tables.MESSAGES, Message.objects.filter(id__lt=high))]
    finished = {"id__lt": high, "finished_at__isnull": False}
    attempts = Attempt.objects.filter(**{f"delivery__{name}": it for name, it in finished.items()})
    return [(tables.ATTEMPTS, attempts), (tables.DELIVERIES, Delivery.objects.filter(**finished))]


def _file(chosen: Settings, table: Table, found: QuerySet[Any]) -> dict[str, Any]:
    """Write rows that Django reads to a file.

    The pipeline's driver has another SQLite library: the first to close the file drops the locks of
    both.
    """
    assert chosen.lake is not None
    joined = [column.name for column in tables.OWNER_COLUMNS] if table is tables.ATTEMPTS else []
    whose = {name: F(f"delivery__{name}") for name in joined}
    own = [name for name in table.schema.names if name not in whose]
    rows = [
        {name: json.dumps(it) if isinstance(it, dict) else it for name, it in row.items()}
        for row in found.order_by("id").values(*own, **whose)
    ]
    path = chosen.lake / table.name / "some.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    return {
        "table": table.name,
        "path": str(path.relative_to(chosen.lake)),
        "rows": len(rows),
        "first": min((row["id"] for row in rows), default=0),
        "last": max((row["id"] for row in rows), default=0),
    }
