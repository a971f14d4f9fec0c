"""Spark's reader of the broker's tables: the same rows on every database, none skipped."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from channels_app.models import Message, MessageBody
from delivery.models import Attempt, Delivery
from pipeline import settings
from pipeline.broker import source, tables
from pipeline.broker.database import LIST_REFRESH, Database
from pipeline.lake.datasets import Datasets
from pipeline.settings import Settings
from tests.pipeline.elsewhere import Elsewhere
from tests.support.counts import make_deliveries
from tests.support.factories import ConsumerFactory

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.mysql]

MODELS = {"messages": Message, "deliveries": Delivery, "attempts": Attempt}
NOT_READ = {
    "messages": set[str](),
    # Columns that finished rows do not have.
    "deliveries": {"due_at", "lease_owner"},
    "attempts": set[str](),
}
JOINED = {"attempts": {"message_id", "consumer_id", "channel_id"}}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_column_of_the_broker_is_read(name: str) -> None:
    theirs = {field.column for field in MODELS[name]._meta.concrete_fields}
    ours = set(tables.BY_NAME[name].schema.names) - JOINED.get(name, set())
    assert ours == theirs - NOT_READ[name]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_rows_come_as_the_broker_sees_them(spark: SparkSession, name: str) -> None:
    fill()
    rows = spark.read.format(source.FORMAT).options(table=name).load().collect()
    found = {row["id"]: row.asDict() for row in rows}

    table = tables.BY_NAME[name]
    wanted = {row["id"]: row for row in MODELS[name]._default_manager.values()}
    assert set(found) == set(wanted)
    for key, row in wanted.items():
        for column in set(table.schema.names) & set(row):
            assert plain(found[key][column]) == plain(row[column]), (name, column)


def test_a_body_is_read_as_it_is_stored(
    address: str, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.READ_URL, address)
    fill()
    message = Message.objects.first()
    assert message is not None
    MessageBody.objects.create(message=message, data=b"\x00\xff sealed", key_id="k1")

    sql = tables.MESSAGES_WITH_BODIES.select(f"m.id = {message.id:d}")
    (row,) = elsewhere.read(sql, tables.MESSAGES_WITH_BODIES.schema)

    assert (row["body"], row["body_key_id"]) == (b"\x00\xff sealed", "k1")


def test_only_the_wanted_columns_and_keys_are_read(spark: SparkSession, chosen: Settings) -> None:
    deliveries = fill()
    keys = sorted(row.id for row in deliveries)
    frames = Datasets(spark, Database(chosen.database_url), chosen)

    rows = frames.table_rows(tables.DELIVERIES, keys[1], keys[3], ["state", "id"]).collect()

    assert sorted(row["id"] for row in rows) == keys[1:3]
    assert rows[0].asDict().keys() == {"state", "id"}


def test_a_key_is_cut_by_time_as_the_broker_makes_it() -> None:
    at = datetime(2026, 11, 22, 4, 20, 34, 235_000, tzinfo=UTC)
    key = tables.first_key(at)
    assert tables.created_at(key) == at
    assert tables.created_at(key - 1) < at


@pytest.mark.mariadb
def test_the_fence_stands_before_a_transaction_that_is_open(chosen: Settings) -> None:
    reader = Database(chosen.database_url)
    writer = Database(chosen.database_url)
    lag = timedelta(seconds=2)
    with writer.transaction():
        began = reader.now()
        writer.execute("UPDATE channels_app_configversion SET number = number + 1")
        held = reader.readable_until(lag)
    assert held <= began - lag

    # InnoDB refreshes its list of transactions every 0.1 s at most, and other tests have short
    # transactions on the same server.
    end = time.monotonic() + 120
    while (free := reader.readable_until(lag)) <= began - lag:
        assert time.monotonic() < end
        time.sleep(0.3)
    assert free <= reader.now() - lag - LIST_REFRESH


def test_a_stream_never_skips_a_row_that_commits_late(spark: SparkSession, tmp_path: Path) -> None:
    """Its key is older than those that the stream has already read."""
    seen: list[int] = []

    def take(rows: Any, number: int) -> None:
        seen.extend(row["id"] for row in rows.collect())

    lag_s = 2
    rows = spark.readStream.format(source.FORMAT).options(table="deliveries", lag_s=lag_s).load()
    writer = rows.writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(tmp_path / "stream"))
    late = make_deliveries(ConsumerFactory.create(), 3)
    Delivery.objects.filter(id__in=[row.id for row in late]).delete()
    writer = writer.trigger(processingTime="300 milliseconds")
    query = writer.start()
    try:
        early = fill()
        Delivery.objects.bulk_create(late)
        wanted = {row.id for row in [*early, *late]}
        for _ in range(900):
            if set(seen) >= wanted:
                break
            try:
                query.awaitTermination(1)
            except StreamingQueryException as error:
                # Spark gives the source's Python process ten seconds to start, and has no setting
                # for it. On a busy machine start the query again from its checkpoint.
                if "failed to connect back" not in str(error):
                    raise
                query = writer.start()
    finally:
        query.stop()

    assert sorted(seen) == sorted(wanted)


def fill() -> list[Delivery]:
    """Make dead deliveries with attempts, some of whose columns are empty."""
    rows = make_deliveries(ConsumerFactory.create(), 5)
    now = datetime(2026, 11, 22, 4, 20, 34, 120, tzinfo=UTC)
    Attempt.objects.bulk_create(
        Attempt(
            id=row.id + 1,
            delivery=row,
            number=1,
            started_at=now if place else now.replace(microsecond=0),
            outcome="server_error",
            status_code=500 if place else None,
            answer_excerpt=b"\x00no" if place else b"",
            connect_ms=place or None,
            error="\u00e4 \U0001f600" if place else "",
        )
        for place, row in enumerate(rows)
    )
    return rows


def plain(value: Any) -> Any:
    """Convert a value to the form that both readers share."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str) and value.startswith("{"):
        return json.loads(value)
    return value
