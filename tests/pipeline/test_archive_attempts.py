"""Attempts go to the lake with their deliveries, wherever they are in their table, each once."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from channels_app.core import ids
from delivery.models import Attempt, Delivery, Segment
from pipeline import settings
from pipeline.broker import tables
from pipeline.lake import attempts
from pipeline.lake.attempts import SegmentDeliveries
from tests.pipeline import month as month_module
from tests.pipeline.conftest import RunArchive
from tests.pipeline.test_archive_kills import finish
from tests.pipeline.whereabouts import Lake, assert_once, in_tables, requeue

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.mysql]
BEGIN = datetime(2026, 10, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def _month(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv(settings.READ_URL, address)
    month_module.make_few_days(150)


@pytest.fixture
def files(chosen: settings.Settings) -> Lake:
    """The lake's files."""
    assert chosen.lake is not None
    return Lake(chosen.lake)


def eligible() -> list[Delivery]:
    """Deliveries that will be archived, oldest first."""
    return list(Delivery.objects.filter(state="delivered").order_by("id"))


def attempt(delivery_id: int, number: int, at: datetime, place: int = 0) -> Attempt:
    """An attempt with a key of that instant."""
    key = ids.first_id_at(int(at.timestamp() * 1000)) + 3000 + place
    return Attempt(id=key, delivery_id=delivery_id, number=number, started_at=at, outcome="timeout")


def are_joined(files: Lake) -> bool:
    """Whether attempts are sorted by delivery, instead of by their own keys."""
    paths = [segment.files[1]["path"] for segment in Segment.objects.filter(kind="deliveries")]
    return all(
        (np.diff(pq.read_table(files.folder / path)["delivery_id"].to_numpy()) >= 0).all()
        for path in paths
    )


def test_attempts_long_after_their_delivery_and_by_a_clock_behind_go_with_it(
    archive_job: RunArchive, files: Lake
) -> None:
    first, *_, other, last = eligible()
    for delivery, at in (
        (first, tables.created_at(first.id) - 5 * SECOND),
        (other, datetime.now(UTC) - timedelta(hours=1)),
        (last, datetime.now(UTC) - timedelta(hours=1, seconds=1)),
    ):
        attempt(delivery.id, delivery.attempt_count + 1, at).save()
        delivery.attempt_count += 1
        delivery.save()
    before = in_tables()
    assert archive_job()["to_do_again"] == 0
    assert set(Segment.objects.values_list("state", flat=True)) == {"verified"}
    finish(archive_job)
    assert_once(before, files)
    assert len(files.rows()["attempts"]) > 200


def test_where_others_lie_in_between_the_database_finds_them(
    archive_job: RunArchive, files: Lake
) -> None:
    waiting, *others = eligible()
    requeue(waiting.id)
    Attempt.objects.bulk_create(
        attempt(waiting.id, 5 * place + number, row.finished_at + number * SECOND, place)
        for place, row in enumerate(others, start=1)
        for number in range(5)
        if row.finished_at
    )
    before = in_tables()
    assert archive_job()["to_do_again"] == 0
    assert are_joined(files)
    finish(archive_job)
    assert_once(before, files)


def test_a_delivery_that_counts_its_attempts_wrong_takes_a_second_look(
    archive_job: RunArchive, files: Lake
) -> None:
    row = eligible()[5]
    attempt(row.id, row.attempt_count + 1, datetime.now(UTC) - timedelta(hours=1)).save()
    before = in_tables()
    assert archive_job()["to_do_again"] == 1
    assert archive_job()["to_do_again"] == 0
    finish(archive_job)
    assert_once(before, files)


def test_attempts_without_a_delivery_hold_nothing_up_and_all_are_read_in_their_order(
    archive_job: RunArchive, files: Lake
) -> None:
    row = eligible()[5]
    attempt(row.id + 1, 1, tables.created_at(row.id) + SECOND).save()
    assert not Delivery.objects.filter(id=row.id + 1).exists()
    before = in_tables()
    assert archive_job()["to_do_again"] == 0
    assert not are_joined(files)
    finish(archive_job)
    assert_once(before, files)


def deliveries_of(*rows: tuple[int, int, int]) -> SegmentDeliveries:
    """Deliveries from tuples: seconds after BEGIN, duration in seconds, number of attempts."""
    made = SegmentDeliveries()
    schema = pa.schema([tables.DELIVERIES.schema.field(name) for name in attempts.COLUMNS])
    for at, took, count in rows:
        when = BEGIN + at * SECOND
        values = [tables.first_key(when), count, when + took * SECOND, at, at + 1, at + 2]
        made.add(pa.RecordBatch.from_pylist([dict(zip(schema.names, values, strict=True))], schema))
    return made


def seconds(span: tuple[int, int]) -> tuple[float, float]:
    """A span of keys in seconds after BEGIN."""
    low, high = ((tables.created_at(key) - BEGIN).total_seconds() for key in span)
    return low, high


def test_reading_ends_when_nearly_all_have_ended_or_sooner() -> None:
    assert seconds(deliveries_of((10, 0, 1)).key_range) == (10, 11)
    assert seconds(deliveries_of(*[(at, 3, 1) for at in range(101)]).key_range) == (0, 104)
    # A delivery that took a week is looked up by key.
    long = deliveries_of(*[(at, 3, 1) for at in range(200)], (200, 600_000, 2))
    assert seconds(long.key_range) == (0, 204)
    # So is each one where all took long: at most a quarter of the rows read are not needed.
    assert seconds(deliveries_of(*[(at, 600_000, 2) for at in range(101)]).key_range) == (0, 126)
    # Attempts by a clock that is 30 s behind.
    assert seconds(deliveries_of((0, -30, 1), (8, -30, 1)).key_range) == (0, 9)


def test_those_that_did_not_come_by_are_named() -> None:
    some = deliveries_of((0, 1, 1), (1, 1, 2), (2, 1, 0), (3, 1, 1))
    schema = tables.ATTEMPTS_ONLY.schema
    keys = [tables.first_key(BEGIN + at * SECOND) for at in range(5)]
    rows = [
        dict.fromkeys(schema.names) | {"id": number, "delivery_id": key}
        for number, key in enumerate([keys[4], keys[0], keys[1] + 1, keys[1], keys[0] - 1])
    ]
    own = some.match(pa.RecordBatch.from_pylist(rows, schema))
    assert [(row["id"], row["message_id"], row["channel_id"]) for row in own.to_pylist()] == [
        (1, 0, 2),
        (3, 1, 3),
    ]
    assert [*some.incomplete()] == [[keys[1], keys[3]]]
