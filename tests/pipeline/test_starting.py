"""Spark starts in the background while a job does other work."""

import gc
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Event, Timer
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.broker import runs
from pipeline.execution import session
from pipeline.execution.job import Context
from pipeline.settings import Settings

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def context(chosen: Settings) -> Iterator[Context]:
    """The context of a run."""
    run = runs.begin(chosen.database_url, "archive", {}, run_id=None, requested_by="tests")
    yield Context(chosen, Namespace(), run)
    run.end("finished", {})


def test_a_start_that_fails_is_told_when_spark_is_wanted(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    context.start_workers()
    with pytest.raises(session.JavaError, match="/nowhere"):
        _ = context.workers
    context.close()


def test_a_start_that_fails_unseen_does_not_hold_the_end_up(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    context.start_workers()
    context.close()


def test_who_ends_early_ends_a_spark_that_is_still_starting(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, may_start = [], Event()

    @contextmanager
    def start(*_: Any) -> Iterator[None]:
        told.append("begun")
        may_start.wait(60)
        time.sleep(0.1)
        yield
        told.append("ended")

    monkeypatch.setattr(session, "workers", start)
    context.start_workers()
    context.start_workers()
    Timer(0.2, may_start.set).start()
    context.close()
    assert told == ["begun", "ended"]


def test_workers_on_this_machine_start_with_their_libraries_loaded(spark: SparkSession) -> None:
    """A collection after each task then skips them, and no process compiles PySpark."""

    def look(_: Iterable[int]) -> Iterator[tuple[int, list[str]]]:
        yield gc.get_freeze_count(), [path for path in sys.path if path.endswith("pyspark.zip")]

    ((frozen, zipped),) = spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect()
    assert frozen > 10_000
    assert zipped == []
