"""One Spark session for all pipeline tests, and jobs that run in it as on the command line."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.conf import settings as django_settings
from django.db import connection

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from pyspark.sql import SparkSession

from pipeline import cli
from pipeline.broker import high_watermark, runs
from pipeline.core import encryption
from pipeline.execution import session
from pipeline.execution.job import Context
from pipeline.jobs import JOBS
from pipeline.settings import Settings
from pipeline.transforms import segments
from tests.pipeline.elsewhere import Elsewhere

RunJob = Callable[..., dict[str, Any]]
RunArchive = Callable[..., dict[str, Any]]
QUICK = {
    "spark__sql__shuffle__partitions": "2",
    "spark__sql__adaptive__enabled": "false",
    "spark__sql__codegen__wholeStage": "false",
    "spark__sql__codegen__factoryMode": "NO_CODEGEN",
    "spark__driver__extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:-UseParallelGC -XX:+UseSerialGC"
    ),
}
"""Settings for few rows: optimizations for many rows take longer than such a query."""


@pytest.fixture(scope="session", autouse=True)
def _short_java() -> Iterator[None]:
    """Limit every Java that a test starts to the first compiler tier, as few rows repay no more."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        yield


@pytest.fixture(scope="session")
def address(django_db_setup: None) -> str:
    """The URL of the test database."""
    place = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{place['NAME']}"
    login = quote(place["USER"], safe="")
    if place["PASSWORD"]:
        login += f":{quote(place['PASSWORD'], safe='')}"
    return f"mysql://{login}@{place['HOST']}:{place['PORT']}/{place['NAME']}"


@pytest.fixture(scope="session")
def spark(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark session for all tests."""
    folder = tmp_path_factory.mktemp("spark")
    with session.start(_settings(address, folder), "tests", **QUICK) as started:
        yield started


@pytest.fixture
def chosen(address: str, tmp_path: Path) -> Settings:
    """Settings of an installation with its own empty lake."""
    return _settings(address, tmp_path)


@pytest.fixture
def run_job(chosen: Settings, spark: SparkSession) -> RunJob:
    """Run a job with options as on the command line; returns its result, or raises."""

    def run(name: str, **options: Any) -> dict[str, Any]:
        return run_with(chosen, spark, name, **options)

    return run


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[Elsewhere]:
    """Processes that stand in for Spark's executors."""
    processes = Elsewhere()
    yield processes
    processes.close()


@pytest.fixture
def archive_job(
    chosen: Settings, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> RunArchive:
    """Run the job `archive` without Spark, whose start takes most of a test's time."""
    monkeypatch.setattr(segments, "_call_executor", elsewhere.ask)

    def run(**options: Any) -> dict[str, Any]:
        return run_with(chosen, None, "archive", **options)

    return run


def count_until(chosen: Settings, at: datetime) -> None:
    """Let jobs take the hour before ``at`` as the last complete one, whenever they run."""
    object.__setattr__(chosen, "lag", datetime.now(UTC) - at - timedelta(minutes=30))


def run_with(chosen: Settings, spark: Any, name: str, **options: Any) -> dict[str, Any]:
    """Run a job as on the command line; ``spark`` is None to run without Spark."""
    if connection.vendor == "mysql":
        time.sleep(
            high_watermark.LIST_REFRESH.total_seconds()
        )  # wait until rows made just now may be read
    job = JOBS[name]
    parser = argparse.ArgumentParser()
    job.add_options(parser)
    wanted = parser.parse_args(cli.to_arguments(options))
    mine = runs.begin(
        *(chosen.database_url, name, options),
        run_id=None,
        requested_by="tests",
        private=job.private,
    )
    context = Context(chosen, wanted, mine)
    context.__dict__["spark"] = spark
    context.__dict__["workers"] = spark and spark.sparkContext
    state, result = "failed", {}
    try:
        result = job.work(context)
        state = "finished"
    finally:
        context.close()
        mine.end(state, result)
    return result


def _settings(address: str, folder: Path) -> Settings:
    return Settings(
        database_url=address,
        read_url=address,
        lake=folder / "the lake",  # Spark writes a space as %20
        master="local[2]",
        memory="1g",
        partitions=2,
        lag=timedelta(0),
        keep_bodies=True,
        retention_days=30,
        dead_retention_days=90,
        folder=folder,
        python=sys.executable,
        encryption_keys=encryption.derived_key(django_settings.SECRET_KEY),
    )
