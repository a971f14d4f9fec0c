"""A lake without the archive: rows are moved into files as if it had been at work."""

from datetime import date

import pyarrow.parquet as pq
from django.utils import timezone
from pyspark.sql import SparkSession

from channels_app.models import Message, MessageBody
from delivery.models import Attempt, Delivery, Segment
from pipeline import source, tables
from pipeline.settings import Settings


def move(spark: SparkSession, chosen: Settings, high: int) -> None:
    """Finished deliveries with keys below ``high``, their attempts, and messages without others."""
    old = Delivery.objects.filter(id__lt=high, state__in=["delivered", "dead", "cancelled"])
    deliveries = set(old.values_list("id", flat=True))
    attempts = set(Attempt.objects.filter(delivery_id__in=deliveries).values_list("id", flat=True))
    left = Delivery.objects.exclude(id__in=deliveries).values_list("message_id", flat=True)
    messages = set(Message.objects.filter(id__lt=high).values_list("id", flat=True)) - set(left)
    files = [
        _file(spark, chosen, tables.DELIVERIES, deliveries),
        _file(spark, chosen, tables.ATTEMPTS, attempts),
    ]
    _segment("deliveries", high, files)
    _segment("messages", high, [_file(spark, chosen, tables.MESSAGES, messages)])
    Attempt.objects.filter(id__in=attempts).delete()
    Delivery.objects.filter(id__in=deliveries).delete()
    MessageBody.objects.filter(message_id__in=messages).delete()
    Message.objects.filter(id__in=messages).delete()


def _file(
    spark: SparkSession, chosen: Settings, table: tables.Table, keys: set[int]
) -> dict[str, object]:
    rows = spark.read.format(source.FORMAT).options(table=table.name).load().toArrow()
    rows = rows.filter([key in keys for key in rows.column("id").to_pylist()])
    assert chosen.lake is not None
    path = f"{table.name}/all.parquet"
    (chosen.lake / table.name).mkdir(parents=True)
    pq.write_table(rows.cast(table.schema), chosen.lake / path, coerce_timestamps="us")
    return {
        "table": table.name,
        "path": path,
        "rows": len(keys),
        "first": min(keys),
        "last": max(keys),
    }


def _segment(kind: str, high: int, files: list[dict[str, object]]) -> None:
    Segment.objects.create(
        kind=kind,
        day=date(2026, 1, 1),
        low=0,
        high=high,
        state="pruned",
        files=files,
        planned_at=timezone.now(),
    )
