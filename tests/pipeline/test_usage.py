"""Usage: Spark counts what plain Python counts over the same month, in tables and lake."""

import csv
from collections import Counter as Tally
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from channels_app.models import Channel, Consumer
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Delivery, LatencyHour, UsageHour
from pipeline.contract import histogram
from pipeline.execution.job import JobError
from pipeline.jobs.usage import COUNTED, KEYS
from pipeline.settings import Settings
from pipeline.transforms import endpoints
from tests.pipeline import month, moving
from tests.pipeline.conftest import RunJob, count_until
from tests.pipeline.month import Month

pytestmark = pytest.mark.django_db(transaction=True)

Key = tuple[datetime, int, int, int]


def hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def counted(made: Month) -> dict[Key, Tally[str]]:
    """The month's usage, counted row by row."""
    found: dict[Key, Tally[str]] = {}
    messages = {row.id: row for row in made.messages}

    def at(when: datetime, message_id: int, consumer_id: int) -> Tally[str]:
        message = messages[message_id]
        producer_id = message.producer_id or 0
        key = (hour(when), message.channel_id, producer_id, consumer_id)
        return found.setdefault(key, Tally())

    for message in made.messages:
        at(message.accepted_at, message.id, 0).update(messages=1, bytes=message.body_bytes)
    for delivery in made.deliveries:
        if delivery.finished_at is not None:
            whose = delivery.message_id, delivery.consumer_id
            at(delivery.finished_at, *whose)[delivery.state] += 1
    for attempt in made.attempts:
        outcome = Outcome(attempt.outcome)
        message_id = attempt.delivery.message_id
        mine = at(attempt.started_at, message_id, attempt.delivery.consumer_id)
        mine.update(attempts=1, failed_attempts=int(outcome.charged))
        mine["bytes_out"] += outcome.is_success * messages[message_id].body_bytes
    return found


def timed(made: Month) -> Tally[tuple[datetime, int, int]]:
    """The month's latencies."""
    return Tally(
        (hour(row.started_at), row.delivery.consumer_id, histogram.bucket(row.total_ms))
        for row in made.attempts
        if Outcome(row.outcome).is_success
    )


def plain(found: dict[Key, Tally[str]]) -> dict[Key, tuple[int, ...]]:
    return {key: tuple(counts[name] for name in COUNTED) for key, counts in found.items()}


def stored() -> dict[Key, tuple[int, ...]]:
    rows = UsageHour.objects.values_list(*KEYS, *COUNTED)
    found = {row[:4]: row[4:] for row in rows}
    assert len(found) == len(rows)
    return found


def stored_times() -> dict[tuple[datetime, int, int], int]:
    rows = LatencyHour.objects.values_list("hour", "consumer_id", "bucket", "count")
    return {row[:3]: row[3] for row in rows}


@pytest.fixture
def made() -> Month:
    """A month with one interrupted attempt, and one response over the size limit."""
    made = month.make(messages=400)
    for row, outcome in zip(made.attempts[:2], ("interrupted", "delivered_oversized"), strict=True):
        row.outcome = outcome
        row.save()
    return made


def test_a_month_is_what_its_rows_add_up_to(made: Month, run_job: RunJob, tmp_path: Path) -> None:
    told = run_job("usage", since=made.since.isoformat())

    wanted = counted(made)
    assert stored() == plain(wanted)
    assert stored_times() == timed(made)
    assert told["messages"] == len(made.messages)
    assert told["attempts"] == len(made.attempts)
    assert told["dead"] == sum(row.state == "dead" for row in made.deliveries)

    # Again, with a file that has names and no formula.
    Channel.objects.filter(id=made.channels[0].id).update(slug="=1+1")
    Consumer.objects.filter(id=made.consumers["late"].id).update(client_id="@late")
    path = tmp_path / "usage.csv"
    before = stored(), stored_times()
    run_job("usage", since=made.since.isoformat(), csv=str(path))
    assert (stored(), stored_times()) == before

    rows = list(read(path))
    assert len(rows) == len(wanted)
    assert {row["channel"] for row in rows} == {"'=1+1", "invoices"}
    assert {row["consumer"] for row in rows} >= {"'@late", "books", ""}
    assert {row["producer"] for row in rows} == {"shop", "billing"}
    for name in COUNTED:
        assert sum(int(row[name]) for row in rows) == sum(row[name] for row in wanted.values())
    assert [row["hour"] for row in rows] == sorted(f"{key[0]:%Y-%m-%d %H:%M}" for key in wanted)
    assert [file.name for file in tmp_path.iterdir() if "usage" in file.name] == ["usage.csv"]


@pytest.mark.mysql
@pytest.mark.smoke
def test_a_window_is_replaced_and_nothing_else(made: Month, run_job: RunJob) -> None:
    since, until = made.until - timedelta(days=3, hours=5), made.until - timedelta(hours=7)
    # A delivery counts where it ended, however old it is.
    old = next(row for row in made.deliveries if row.finished_at is not None)
    assert old.accepted_at < since - timedelta(days=7)
    old.finished_at = until - timedelta(minutes=5)
    old.state = "cancelled"
    old.save()
    other = {"channel_id": 1, "producer_id": 2, "consumer_id": 3, "attempts": 999}
    around = (since - timedelta(hours=1), until)
    inside = (since, until - timedelta(hours=1))
    for at in (*around, *inside):
        UsageHour.objects.create(hour=at, **other)
        LatencyHour.objects.create(hour=at, consumer_id=3, bucket=9, count=999)

    run_job("usage", since=since.isoformat(), until=until.isoformat())

    wanted = {key: row for key, row in plain(counted(made)).items() if since <= key[0] < until}
    for at in around:
        wanted[at, 1, 2, 3] = tuple(999 if name == "attempts" else 0 for name in COUNTED)
    assert stored() == wanted
    assert UsageHour.objects.get(cancelled=1).hour == hour(old.finished_at)
    times = {key: n for key, n in timed(made).items() if since <= key[0] < until}
    assert stored_times() == times | {(at, 3, 9): 999 for at in around}


def test_the_last_two_days_bring_in_what_came_late(
    made: Month, run_job: RunJob, chosen: Settings
) -> None:
    count_until(chosen, made.until)
    since = made.until - timedelta(hours=48)
    mine = [row for row in made.attempts if since <= row.started_at < made.until]
    late = [row for row in mine if row.started_at >= since + timedelta(hours=18)]
    Attempt.objects.filter(id__in=[row.id for row in late]).delete()
    told = run_job("usage")
    assert told["attempts"] == len(mine) - len(late) > 0

    Attempt.objects.bulk_create(late)
    told = run_job("usage")

    assert (told["since"], told["until"]) == (since.isoformat(), made.until.isoformat())
    assert told["attempts"] == len(mine)
    wanted = plain(counted(made)).items()
    assert stored() == {key: row for key, row in wanted if since <= key[0] < made.until}


@pytest.mark.parametrize("is_done", [True, False], ids=["pruned", "half pruned"])
def test_what_is_in_the_lake_counts_once(
    made: Month, run_job: RunJob, chosen: Settings, spark: SparkSession, is_done: bool
) -> None:
    middle = made.until - timedelta(days=12)
    for kind in ("deliveries", "messages"):
        moving.move(chosen, kind, middle, stays=lambda key: not is_done and key % 3 == 0)
    assert Delivery.objects.filter(finished_at__lt=middle).exists() != is_done

    since = made.since
    if is_done:  # also a window all of whose rows have left the tables
        early = since + timedelta(days=9)
        run_job("usage", since=since.isoformat(), until=early.date().isoformat())
        since += timedelta(days=8)
    run_job("usage", since=since.isoformat())

    assert stored() == plain(counted(made))
    assert stored_times() == timed(made)


def test_a_window_without_an_hour_is_refused(run_job: RunJob) -> None:
    now = datetime.now(UTC)
    with pytest.raises(JobError, match="No whole hour"):
        run_job("usage", since=now.isoformat(), until=now.isoformat())


def read(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def test_spark_sorts_into_the_same_buckets(spark: SparkSession) -> None:
    edges = {
        number + off
        for place in range(124)
        for number in [int(histogram.bounds(place)[0])]
        for off in (-1, 0, 1, 2)
    }
    values = sorted(value for value in edges if 0 <= value < 2**31)
    rows = spark.createDataFrame([(value,) for value in values], "ms int")
    rows = rows.select("ms", endpoints.bucket(f.col("ms")).alias("place"))

    assert [tuple(row) for row in rows.collect()] == [
        (value, histogram.bucket(value)) for value in values
    ]
