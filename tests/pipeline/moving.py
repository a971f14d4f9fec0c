"""A lake for tests: rows that leave the broker's tables for files, as the archive leaves them."""

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
    """Nothing stays."""
    return False


def move(
    chosen: Settings, kind: str, until: datetime, *, stays: Callable[[int], bool] = none
) -> Segment:
    """Rows with older keys; where some stay in the tables too, they are still being deleted."""
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
    """Attempts before their deliveries, which say whose they are."""
    if kind == "messages":
        return [(tables.MESSAGES, Message.objects.filter(id__lt=high))]
    finished = {"id__lt": high, "finished_at__isnull": False}
    attempts = Attempt.objects.filter(**{f"delivery__{name}": it for name, it in finished.items()})
    return [(tables.ATTEMPTS, attempts), (tables.DELIVERIES, Delivery.objects.filter(**finished))]


def _file(chosen: Settings, table: Table, found: QuerySet[Any]) -> dict[str, Any]:
    """From what Django reads: the pipeline's driver would be a second SQLite in this process, and
    the one that closes the file first takes the other's locks along."""
    assert chosen.lake is not None
    joined = [column.name for column in tables.WHOSE] if table is tables.ATTEMPTS else []
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
