"""Erase a person from the lake: all their rows, no others, and a receipt without personal data."""

import hashlib
from datetime import timedelta
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.db import connection
from pyspark.sql import SparkSession

from channels_app.core import ids
from channels_app.models import Channel, ConfigVersion, Consumer, Message
from delivery.models import Erasure, PipelineRun, Segment
from pipeline.execution.job import JobError
from pipeline.settings import Settings
from tests.pipeline import archiving, month
from tests.pipeline.conftest import RunJob
from tests.pipeline.month import Month

pytestmark = pytest.mark.django_db(transaction=True)
WHO = "customer-7"


@pytest.fixture
def made(chosen: Settings) -> Month:
    """A month in the lake in several files, except its last days."""
    found = month.make(messages=300)
    for row in found.consumers.values():
        Consumer.objects.filter(id=row.id).update(updated_at=row.created_at)
    Channel.objects.update(updated_at=found.since)
    ConfigVersion.bump()
    for days in (25, 15, 5):
        archiving.archive(chosen, found.until - timedelta(days=days))
    return found


def rows(chosen: Settings) -> dict[str, list[dict[str, Any]]]:
    """The rows of all files in the ledger, after checking the files' hashes."""
    assert chosen.lake is not None
    found: dict[str, list[dict[str, Any]]] = {"messages": [], "deliveries": [], "attempts": []}
    for segment in Segment.objects.all():
        assert segment.state == "pruned"
        for file in segment.files:
            path = chosen.lake / file["path"]
            assert hashlib.sha256(path.read_bytes()).hexdigest() == file["sha256"]
            some = pq.read_table(path, partitioning=None).to_pylist()
            assert len(some) == file["rows"]
            found[file["table"]] += some
    return found


def plans(spark: SparkSession) -> str:
    """Spark's plans of all queries, as its pages and event log show them."""
    assert spark._jsparkSession is not None
    told = spark._jsparkSession.sharedState().statusStore().executionsList()
    found = [told.apply(place).physicalPlanDescription() for place in range(told.size())]
    assert any("ordering_key" in text for text in found)
    return "\n".join(found)


@pytest.mark.mysql
@pytest.mark.trap("an erasure that fails half way")
def test_a_person_is_gone_and_nobody_else(
    made: Month, run_job: RunJob, chosen: Settings, spark: SparkSession
) -> None:
    before = rows(chosen)
    theirs = {it.id for it in made.messages if it.ordering_key == WHO}
    tables_have = Message.objects.filter(id__in=theirs).count()
    in_lake = {
        "messages": [it for it in before["messages"] if it["id"] in theirs],
        "deliveries": [it for it in before["deliveries"] if it["message_id"] in theirs],
        "attempts": [it for it in before["attempts"] if it["message_id"] in theirs],
    }
    counts = {name: len(some) for name, some in in_lake.items()}
    assert min(counts.values()) > 0

    tried = run_job("erase", ordering_key=[WHO], dry_run=True)
    assert {name: tried[name] for name in counts} == counts
    assert tried["left_in_tables"] == tables_have
    assert rows(chosen) == before
    assert not Erasure.objects.exists()

    done = run_job("erase", ordering_key=[WHO], reason="asked by letter")
    assert {name: done[name] for name in counts} == counts
    after = rows(chosen)
    for name, some in before.items():
        assert after[name] == [it for it in some if it not in in_lake[name]]
    receipt = Erasure.objects.get()
    assert receipt.finished_at is not None
    assert (receipt.message_count, receipt.delivery_count, receipt.attempt_count) == (
        *(counts["messages"], counts["deliveries"], counts["attempts"]),
    )
    assert receipt.left_count == tables_have
    mine = PipelineRun.objects.filter(job="erase")
    assert [run.options.get("subject") for run in mine] == 2 * [receipt.digest]
    assert mine.latest("id").options["reason"] == "asked by letter"
    assert WHO not in str(vars(receipt)) + str([vars(run) for run in mine])
    assert WHO not in plans(spark)
    assert chosen.lake is not None
    assert not list(chosen.lake.rglob("*.anew"))
    if connection.vendor == "sqlite":  # an audit takes long, and has the same statements elsewhere
        audit = run_job("audit", whole_since=made.since.isoformat())
        assert audit["gap"] == 0
        made_counts = {
            "messages": len(made.messages),
            "deliveries": len(made.deliveries),
            "attempts": len(made.attempts),
        }
        assert {name: audit[name] + counts[name] for name in made_counts} == made_counts

    again = run_job("erase", ordering_key=[WHO])
    assert (again["files"], again["messages"], again["deliveries"]) == (0, 0, 0)
    assert rows(chosen) == after


@pytest.mark.trap("an erasure that fails half way")
def test_by_id_and_idempotency_key_in_files_that_are_older_than_a_column(
    run_job: RunJob, chosen: Settings
) -> None:
    made = month.make(messages=100)
    archiving.archive(
        chosen,
        made.until - timedelta(days=5),
        lambda table, rows: (
            rows.drop_columns(["content_type" if table == "messages" else "number"])
            if table in ("messages", "attempts")
            else rows
        ),
    )
    one, other = made.messages[:2]
    gone = {one.id, other.id}
    assert not Message.objects.filter(id__in=gone).exists()
    found = run_job(
        "erase",
        message=[ids.to_public(ids.MESSAGE, one.id)],
        idempotency_key=[other.idempotency_key],
    )

    assert found["messages"] == 2
    left = rows(chosen)
    assert not gone & {it["id"] for it in left["messages"]}
    assert not gone & {it["message_id"] for it in left["deliveries"]}
    assert left["messages"]
    assert not any("content_type" in it for it in left["messages"])


def test_somebody_has_to_be_named(run_job: RunJob) -> None:
    with pytest.raises(JobError, match="at least one of --ordering-key"):
        run_job("erase", dry_run=True)
