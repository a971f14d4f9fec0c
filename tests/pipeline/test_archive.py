"""The archive: every eligible row goes to the lake exactly once, and no other row."""

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.core.management import call_command
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from channels_app.models import Channel, Message, new_id
from delivery.maintenance import archived, counters, sweeps
from delivery.models import Attempt, Delivery, PipelineRun, RestoredMessage, Segment
from pipeline import settings
from pipeline.broker.database import Database
from pipeline.broker.runs import RunCancelled
from pipeline.execution.job import Context
from pipeline.lake import layout, planning
from pipeline.lake.datasets import Datasets
from pipeline.lake.ledger import Ledger, PlannedRange
from pipeline.settings import Settings
from pipeline.transforms import segments
from pipeline.transforms.segments import Archiver
from tests.pipeline import month as month_module
from tests.pipeline.conftest import RunArchive, RunJob
from tests.pipeline.month import Month
from tests.pipeline.whereabouts import Lake, assert_once, in_tables, prune, requeue, states
from tests.support.counts import assert_counters_are_true

pytestmark = pytest.mark.django_db(transaction=True)
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Make many segments and parts of few rows."""
    monkeypatch.setattr(planning, "SEGMENT_ROWS", 60)
    monkeypatch.setattr(segments, "PART_ROWS", 7)
    monkeypatch.setenv(settings.READ_URL, address)


@pytest.fixture
def month() -> Month:
    """Five weeks whose first days are past their retention; one channel keeps less."""
    made = month_module.make(messages=400)
    # This channel keeps dead letters longer than delivered ones; some of them are eligible, too.
    # Each eligible day is a segment, and each segment takes time.
    Channel.objects.filter(slug="invoices").update(retention_days=25, dead_retention_days=28)
    channel = made.consumers["books"].channel_id
    mine = [row for row in made.deliveries if row.channel_id == channel and row.finished_at]
    for row in mine[::9]:
        row.state = "dead"
        Delivery.objects.filter(id=row.id).update(state="dead")
    for name in ("books", "slow"):
        counters.recount(made.consumers[name].id)
    return made


@pytest.fixture
def few_days() -> Month:
    """Four old days: fewer rows, where it does not matter when a row becomes eligible."""
    return month_module.make_few_days(100)


@pytest.fixture
def files(chosen: Settings) -> Lake:
    """The lake's files."""
    assert chosen.lake is not None
    return Lake(chosen.lake)


def eligible(made: Month) -> set[int]:
    """Deliveries that are past their retention, judged one by one."""
    now = datetime.now(UTC)
    days = {
        row.id: (row.retention_days or 30, row.dead_retention_days or 90)
        for row in Channel.objects.all()
    }
    found = set()
    for row in made.deliveries:
        finished, dead = days[row.channel_id]
        limit = now - DAY * (dead if row.state == "dead" else finished)
        if row.finished_at is not None and row.finished_at < limit:
            found.add(row.id)
    return found


def ripe_messages(made: Month) -> set[int]:
    """Messages that are past their retention, and all of whose deliveries are."""
    now = datetime.now(UTC)
    days = {row.id: row.retention_days or 30 for row in Channel.objects.all()}
    mine = eligible(made)
    held = {row.message_id for row in made.deliveries if row.id not in mine}
    return {
        row.id
        for row in made.messages
        if row.accepted_at < now - DAY * days[row.channel_id] and row.id not in held
    }


def finish(archive_job: RunArchive) -> None:
    """Archive and prune until nothing changes any more."""
    for _ in range(6):
        result = archive_job()
        if not prune() and not result["exported"] and set(states()) <= {"pruned"}:
            return
    raise AssertionError(states())


@pytest.mark.mysql
@pytest.mark.smoke
def test_what_is_old_enough_goes_to_the_lake_once_and_nothing_else(
    archive_job: RunArchive, month: Month, files: Lake
) -> None:
    before, deliveries, messages = in_tables(), eligible(month), ripe_messages(month)
    finish(archive_job)
    assert_once(before, files)
    found = files.rows()
    # Meanwhile more rows may have become eligible.
    assert deliveries <= found["deliveries"].keys() <= eligible(month)
    assert messages <= found["messages"].keys() <= ripe_messages(month)
    assert 0 < len(eligible(month)) < len(month.deliveries)
    assert {row["state"] for row in found["deliveries"].values()} == {"delivered", "dead"}
    assert Segment.objects.count() > 6
    for segment in Segment.objects.all():
        for file in segment.files:
            assert f"/day={segment.day}/" in file["path"]
            keys = [row["id"] for row in _rows(files, file["path"])]
            assert (file["first"], file["last"]) == (min(keys), max(keys))
    assert counters.gap() == 0
    assert_counters_are_true()
    call_command("reconcile")


def test_lake_and_tables_together_are_the_month_at_every_stage(
    run_job: RunJob, few_days: Month, files: Lake, chosen: Settings, spark: SparkSession
) -> None:
    """With Spark, from the export to the query."""
    before = in_tables()

    def check() -> None:
        frames = Datasets(spark, Database(chosen.database_url), chosen)
        until = few_days.until + DAY
        # One query for all tables: starting a query takes longest.
        of_all = [
            ask(None, until, ["id"]).select(f.lit(name).alias("name"), "id")
            for name, ask in (
                ("deliveries", frames.deliveries),
                ("attempts", frames.attempts),
                ("messages", frames.messages),
            )
        ]
        found: dict[str, list[int]] = defaultdict(list)
        for row in reduce(DataFrame.unionByName, of_all).collect():
            found[row["name"]].append(row["id"])
        for name, keys in before.items():
            assert sorted(found[name]) == sorted(keys), (name, states())

    seen: set[str] = set()
    run_job("archive")
    check()
    for _ in archived.prune(0):
        is_new = not set(states()) <= seen
        seen |= set(states())
        if is_new:
            check()
    run_job("archive")
    check()
    assert {"verified", "pruning", "pruned"} <= seen | set(states())
    prune()
    check()


@pytest.mark.mysql
def test_a_dry_run_says_what_would_be_done_and_writes_nothing(
    archive_job: RunArchive, month: Month, files: Lake
) -> None:
    least = len(eligible(month))
    told = archive_job(dry_run=True)
    assert least <= told["deliveries_rows"] <= len(eligible(month))
    assert told["deliveries_segments"] > 2
    assert told["messages_rows"] == 0  # they still have their deliveries
    assert not Segment.objects.exists()
    assert not files.folder.exists()


def test_spark_starts_while_the_plan_is_made_if_there_is_something_to_do(
    archive_job: RunArchive, few_days: Month, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[str, int]] = []

    def begin(context: Context) -> None:
        begun.append((context.run.stage, Segment.objects.count()))

    monkeypatch.setattr(Context, "start_workers", begin)
    archive_job(dry_run=True)
    assert begun == []
    archive_job()
    stage, planned = begun[0]
    assert stage == "planning deliveries"
    assert planned < Segment.objects.count()
    begun.clear()
    archive_job()
    assert begun == []
    Segment.objects.filter(id=Segment.objects.earliest("id").id).update(state="exported")
    archive_job()
    assert begun[0][0] == "planning messages"


def test_a_segment_goes_all_its_way_while_others_are_planned_and_written(
    archive_job: RunArchive, few_days: Month, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MAX_WAITING_PER_EXECUTOR", 2)
    seen, verified = [], Ledger.record_verification

    def look(ledger: Ledger, segment: Any) -> bool:
        seen.append(states())
        return verified(ledger, segment)

    monkeypatch.setattr(Ledger, "record_verification", look)
    archive_job()
    assert max(each["exported"] for each in seen) <= 4, "what is written waits for others"
    total = sum(states().values())
    assert sum(seen[0].values()) < total, "all were planned before the first was written"
    assert states() == {"verified": total}


def test_messages_go_before_the_deliveries_that_the_broker_deletes_meanwhile(
    archive_job: RunArchive, month: Month
) -> None:
    archive_job()
    prune()
    last = Segment.objects.latest("id").id
    Channel.objects.filter(slug="orders").update(retention_days=20)
    archive_job()
    later = Segment.objects.filter(id__gt=last).order_by("id")
    kinds = list(later.values_list("kind", flat=True))
    assert set(kinds) == {"messages", "deliveries"}
    assert kinds == sorted(kinds, reverse=True)


def test_a_stop_does_not_wait_until_a_day_is_counted(
    archive_job: RunArchive, few_days: Month, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(_: Any, kind: str, day: date, limits: Any, __: Any) -> Iterator[PlannedRange]:
        for key in itertools.count():
            time.sleep(0.01)
            yield PlannedRange(kind, day, key, key + 1, limits, 1)

    begin = Archiver.__init__

    def begin_and_stop(self: Archiver, context: Context, ledger: Ledger) -> None:
        begin(self, context, ledger)
        threading.Timer(0.2, context.run.stop).start()

    monkeypatch.setattr(planning, "segments_of_day", endless)
    monkeypatch.setattr(Archiver, "__init__", begin_and_stop)
    with pytest.raises(RunCancelled):
        archive_job()
    assert not Segment.objects.exists()


@pytest.mark.mysql
def test_a_segment_never_crosses_midnight_nor_meets_one_under_way(
    archive_job: RunArchive, month: Month, files: Lake
) -> None:
    archive_job()
    for segment in Segment.objects.filter(kind="deliveries"):
        # The broker means the same rows.
        q = archived._eligible(segment, archived._finished)
        rows = Delivery.objects.filter(q, id__gte=segment.low, id__lt=segment.high)
        assert set(rows.values_list("id", flat=True)) == {
            row["id"] for row in _rows(files, segment.files[0]["path"])
        }
    first = list(Segment.objects.order_by("low"))
    assert all(one.high <= other.low for one, other in pairwise(first))
    day = first[0].day
    Channel.objects.filter(slug="orders").update(retention_days=20)
    archive_job()
    later = Segment.objects.exclude(id__in=[row.id for row in first])
    assert later.exists()
    assert not later.filter(day=day).exists()
    for row in later:
        assert all(row.high <= other.low or row.low >= other.high for other in first)


@pytest.mark.trap("unfinished files inside a table")
def test_a_file_on_its_way_is_in_no_tables_folder(
    archive_job: RunArchive, few_days: Month, files: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pandas and pyarrow would read it there, whatever its suffix."""
    publish = layout.publish
    staged: list[bool] = []
    early: list[Path] = []

    def look(lake: Path, path: str, tmp: str) -> bool:
        staged.append((lake / tmp).is_file())
        tables = [lake / table for table in layout.TABLES]
        there = [file for table in tables for file in table.rglob("*") if file.is_file()]
        known = {
            str(lake / one["path"]) for row in Segment.objects.all() for one in row.files or []
        }
        early.extend(file for file in there if str(file) not in known)
        early.extend(file for file in there if file.suffix != ".parquet")
        return publish(lake, path, tmp)

    monkeypatch.setattr(layout, "publish", look)
    archive_job()

    assert any(staged)
    assert early == []


@pytest.mark.trap("an erasure that fails half way")
def test_an_amended_file_that_is_older_than_a_column_keeps_the_columns_it_has(
    archive_job: RunArchive, few_days: Month, files: Lake
) -> None:
    archive_job()
    first = list(Segment.objects.filter(kind="deliveries").values_list("id", flat=True))
    for segment in Segment.objects.filter(id__in=first):
        for one in segment.files:
            path = files.folder / one["path"]
            table = pq.read_table(path, partitioning=None)
            pq.write_table(table.drop_columns(["consumer_id"]), path)
    key = sorted(eligible(few_days))[3]
    requeue(key)
    prune()
    assert "amending" in states()

    finish(archive_job)

    for segment in Segment.objects.filter(id__in=first):
        for one in segment.files:
            found = pq.read_table(files.folder / one["path"], partitioning=None)
            assert "consumer_id" not in found.column_names
            assert key not in found.column("id").to_pylist()


@pytest.mark.mysql
def test_what_is_replayed_before_it_is_deleted_stays_here_and_leaves_the_lake(
    archive_job: RunArchive, few_days: Month, files: Lake
) -> None:
    before = in_tables()
    archive_job()
    early = sorted(eligible(few_days))[3]
    requeue(early)
    steps = archived.prune(0)
    for _ in range(5):
        next(steps)
    late = sorted(eligible(few_days))[-3]
    assert Delivery.objects.filter(id=late).exists()
    requeue(late)
    prune()
    assert set(states()) == {"pruned", "amending"}
    archive_job()
    prune()
    finish(archive_job)
    found = files.rows()
    assert {early, late} & set(found["deliveries"]) == set()
    assert not any(row["delivery_id"] in (early, late) for row in found["attempts"].values())
    assert set(Delivery.objects.filter(id__in=(early, late)).values_list("state", flat=True)) == {
        "queued"
    }
    for key in (early, late):
        before["deliveries"][key] = in_tables()["deliveries"][key]
    assert_once(before, files)
    assert counters.gap() == 0


@pytest.mark.mysql
def test_a_message_that_loses_its_last_delivery_meanwhile_is_not_deleted_unarchived(
    archive_job: RunArchive, few_days: Month, files: Lake
) -> None:
    """More messages may become eligible in a segment after it was verified."""
    before = in_tables()
    archive_job()
    prune()
    held = sorted(ripe_messages(few_days))[20]
    message = Message.objects.get(id=held)
    holder = Delivery.objects.create(
        id=new_id(),
        message=message,
        consumer=few_days.consumers["steady"],
        channel_id=message.channel_id,
        due_at=datetime.now(UTC),
        accepted_at=message.accepted_at,
    )
    archive_job()
    holder.delete()
    assert archive_of(held).state == "verified"
    assert held not in files.rows()["messages"]
    prune()
    assert Message.objects.filter(id=held).exists()
    assert archive_of(held).state == "amending"
    finish(archive_job)
    assert held in files.rows()["messages"]
    assert_once(before, files)


@pytest.mark.mysql
def test_what_was_brought_back_from_the_lake_is_not_archived_twice_nor_taken_from_there(
    archive_job: RunArchive, few_days: Month, files: Lake
) -> None:
    before = in_tables()
    archive_job()
    prune()
    archive_job()
    segment = Segment.objects.filter(kind="messages", state="verified").first()
    assert segment is not None
    *_, held = Message.objects.filter(id__gte=segment.low, id__lt=segment.high).order_by("id")
    Message.objects.filter(id=held.id).update(version=2)
    before["messages"][held.id]["version"] = 2
    prune()
    segment.refresh_from_db()
    assert segment.state == "amending"
    kept = set(Message.objects.values_list("id", flat=True))
    row = next(row for row in files.rows()["messages"].values() if row["id"] not in kept)
    back = Message(**{name: row[name] for name in ("id", "channel_id", "accepted_at", "due_at")})
    back.state = Message.State.DISPATCHED
    back.save(force_insert=True)
    RestoredMessage.objects.create(message_id=back.id)
    finish(archive_job)
    assert back.id in files.rows()["messages"]
    assert Message.objects.filter(id=back.id).exists()
    Message.objects.filter(id=back.id).delete()
    assert_once(before, files)


def test_a_channel_that_is_deleted_meanwhile_does_not_hold_the_archive_up(
    archive_job: RunArchive, few_days: Month, files: Lake
) -> None:
    archive_job()
    gone = Delivery.objects.filter(channel__slug="invoices")
    Attempt.objects.filter(delivery_id__in=gone.values("id")).delete()
    gone.delete()
    counters.recount(few_days.consumers["books"].id)
    counters.recount(few_days.consumers["slow"].id)
    prune()
    finish(archive_job)
    files.check()
    assert set(states()) == {"pruned"}


def test_retention_that_is_made_longer_meanwhile_does_not_matter(
    archive_job: RunArchive, few_days: Month, files: Lake
) -> None:
    before = in_tables()
    archive_job()
    Channel.objects.update(retention_days=300)
    prune()
    archive_job()
    assert prune() == 0
    assert_once(before, files)


def test_bodies_may_stay_out_of_the_lake(
    few_days: Month,
    files: Lake,
    chosen: Settings,
    archive_job: RunArchive,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    object.__setattr__(chosen, "keep_bodies", False)
    before = in_tables()
    for key in ripe_messages(few_days):
        before["messages"][key] |= {"body": None, "body_key_id": None}
    finish(archive_job)
    assert_once(before, files)


@pytest.mark.mysql
def test_the_broker_deletes_nothing_while_somebody_reads(
    archive_job: RunArchive, few_days: Month, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive_job()
    now = datetime.now(UTC)
    reader = PipelineRun.objects.create(
        job="usage", state="running", requested_at=now, heartbeat_at=now, requested_by="x"
    )
    count = Delivery.objects.count()
    assert prune() == 0
    PipelineRun.objects.filter(id=reader.id).update(state="finished")

    advance = archived._advance

    def begins(*given: Any) -> None:
        advance(*given)
        PipelineRun.objects.filter(id=reader.id).update(state="running", heartbeat_at=now)

    with monkeypatch.context() as patched:
        patched.setattr(archived, "_advance", begins)
        assert prune() == 0
    # The change was rolled back with the rest.
    PipelineRun.objects.filter(id=reader.id).update(state="running")
    assert Delivery.objects.count() == count
    # Its process has died.
    PipelineRun.objects.filter(id=reader.id).update(heartbeat_at=now - timedelta(minutes=1))
    assert prune() > 0


def test_retention_leaves_to_the_archive_what_the_archive_has_to_take(
    few_days: Month, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithLake:
        lake = "/somewhere"

    count = Delivery.objects.count()
    monkeypatch.setattr(sweeps, "conf", lambda: WithLake)
    assert sum(sweeps.old_rows()) == sum(sweeps.archived_rows()) == 0
    assert Delivery.objects.count() == count
    monkeypatch.setattr(WithLake, "lake", "")
    assert sum(sweeps.old_rows()) > 0


def test_a_lake_that_cannot_be_used_is_named_and_nothing_is_lost(
    archive_job: RunArchive, few_days: Month, files: Lake
) -> None:
    before = in_tables()
    archive_job()
    aside = files.folder.with_name("elsewhere")
    files.folder.rename(aside)
    with pytest.raises(layout.LakeError, match="Is the disk mounted"):
        archive_job()
    files.folder.mkdir()
    with pytest.raises(layout.LakeError, match="Is the disk mounted"):
        archive_job()
    files.folder.rmdir()
    aside.rename(files.folder)
    finish(archive_job)
    assert_once(before, files)

    # Nor are files of another archive written over.
    Segment.objects.all().delete()
    with pytest.raises(layout.LakeError, match="another archive"):
        archive_job()


def test_a_full_disk_ends_the_run_with_a_reason(
    archive_job: RunArchive, few_days: Month, files: Lake
) -> None:
    before = in_tables()
    files.folder.mkdir()
    (files.folder / "attempts").symlink_to("/dev/full")
    with pytest.raises(layout.LakeError, match="attempts"):
        archive_job()
    (files.folder / "attempts").unlink()
    finish(archive_job)
    assert_once(before, files)


def test_files_that_are_not_what_was_written_are_written_again(
    archive_job: RunArchive, few_days: Month, files: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = in_tables()
    with monkeypatch.context() as patched:
        # As if the run had ended before it could verify.
        patched.setattr(Ledger, "record_verification", lambda *_: False)
        archive_job()
    short, changed, gone, fewer, other, *rest = Segment.objects.filter(state="exported")
    assert rest

    path = path_of(files, short)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    path = path_of(files, changed)
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])

    path_of(files, gone).unlink()

    # As after a library that wrote fewer rows than it was given.
    path = path_of(files, fewer)
    pq.write_table(pq.read_table(path).slice(1), path)
    fewer.files[0]["sha256"] = layout.sha256(path)
    fewer.save()

    # An attempt that was deleted since.
    delivery = _rows(files, other.files[0]["path"])[0]["id"]
    Attempt.objects.filter(delivery_id=delivery)[:1].get().delete()
    before["attempts"] = in_tables()["attempts"]

    damaged = {row.id for row in (short, changed, fewer, other)}
    # The one whose file is gone is written at once.
    assert archive_job()["to_do_again"] == len(damaged)
    assert set(Segment.objects.exclude(state="verified").values_list("id", flat=True)) == damaged
    finish(archive_job)
    assert_once(before, files)


def path_of(files: Lake, segment: Segment) -> Path:
    path: str = segment.files[0]["path"]
    return files.folder / path


def _rows(files: Lake, path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.ParquetFile(files.folder / path).read().to_pylist()
    return rows


def archive_of(message_id: int) -> Segment:
    """The first segment of messages whose range contains the key."""
    mine = Segment.objects.filter(kind="messages", low__lte=message_id, high__gt=message_id)
    found = mine.order_by("id").first()
    assert found is not None
    return found
