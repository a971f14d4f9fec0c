"""A small archive for tests: old rows move from the tables to files."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from channels_app.models import Message, MessageBody
from delivery.models import Attempt, Counter, Delivery, RetentionMark, Segment
from delivery.models.counter import MADE
from delivery.models.reconciliation import EVERY_CHANNEL
from pipeline.broker import tables
from pipeline.broker.database import Database, instant
from pipeline.settings import Settings

FINISHED = ("delivered", "dead", "cancelled")
Spoil = Callable[[str, pa.Table], pa.Table]


def archive(settings: Settings, until: datetime, spoil: Spoil | None = None) -> None:
    """Move finished deliveries made before ``until``, then messages without any delivery left.

    ``spoil`` may change what is written to the files.
    """
    high = tables.first_key(until)
    rows = Delivery.objects.filter(id__lt=high, state__in=FINISHED)
    gone = list(rows.order_by("id"))
    ids = [row.id for row in gone]
    files = [
        _write(settings, table, f"d.id IN ({listed(ids)})", spoil)
        for table in (tables.DELIVERIES, tables.ATTEMPTS_OF_DELIVERIES)
    ]
    _segment("deliveries", ids, files)
    for row in gone:
        RetentionMark.note(row.channel_id, row.message_id)
        Counter.add({(row.consumer_id, row.state): -1, (row.consumer_id, MADE): -1}, 0)
    Attempt.objects.filter(delivery_id__in=ids).delete()
    Delivery.objects.filter(id__in=ids).delete()
    messages = Message.objects.filter(id__lt=high, state="dispatched", deliveries=None)
    ids = list(messages.order_by("id").values_list("id", flat=True))
    if not ids:
        return
    files = [_write(settings, tables.MESSAGES_WITH_BODIES, f"m.id IN ({listed(ids)})", spoil)]
    _segment("messages", ids, files)
    RetentionMark.note(EVERY_CHANNEL, max(ids))
    MessageBody.objects.filter(message_id__in=ids).delete()
    Message.objects.filter(id__in=ids)._raw_delete("default")


def listed(ids: list[int]) -> str:
    """The ids for an SQL ``IN (...)``."""
    return ", ".join(map(str, ids)) or "0"


def _rows(settings: Settings, table: tables.Table, where: str) -> pa.Table:
    # Not Spark's reader: its SQLite library and Python's release each other's locks in one process.
    database = Database(settings.database_url)
    try:
        found = database.read(table.select(where))
    finally:
        database.close()
    columns = [
        pa.array([_plain(row[place], field.type) for row in found], field.type)
        for place, field in enumerate(table.schema)
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is not None and pa.types.is_timestamp(kind):
        return instant(value)
    return bytes(value) if isinstance(value, memoryview) else value


def _segment(kind: str, ids: list[int], files: list[dict[str, Any]]) -> None:
    now = datetime.now(UTC)
    Segment.objects.create(
        kind=kind,
        day=tables.created_at(ids[0]).date(),
        low=ids[0],
        high=ids[-1] + 1,
        state="pruned",
        cutoffs={"finished": now.isoformat(), "dead": now.isoformat(), "channels": {}},
        files=files,
        row_count=len(ids),
        deleted_count=len(ids),
        planned_at=now,
        pruned_at=now,
    )


def _write(
    settings: Settings, table: tables.Table, where: str, spoil: Spoil | None
) -> dict[str, Any]:
    assert settings.lake is not None
    rows = _rows(settings, table, where)
    rows = spoil(table.name, rows) if spoil else rows
    keys = rows.column("id").to_pylist()
    number = Segment.objects.count() + 1
    path = f"{table.name}/day={tables.created_at(min(keys)).date()}/{number:012d}.parquet"
    file = settings.lake / path
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, file, compression="zstd")
    return {
        "table": table.name,
        "path": path,
        "tmp": "",
        "rows": rows.num_rows,
        "bytes": file.stat().st_size,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "first": min(keys),
        "last": max(keys),
        "totals": {},
    }
