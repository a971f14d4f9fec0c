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

import connectorx
from pyspark.sql import SparkSession

from pipeline import cli
from pipeline.broker import runs
from pipeline.broker.database import LIST_REFRESH
from pipeline.core import encryption
from pipeline.execution import session
from pipeline.execution.job import Context
from pipeline.jobs import JOBS
from pipeline.settings import Settings
from pipeline.transforms import segments
from tests.pipeline.elsewhere import Elsewhere
from tests.support import java_classes

RunJob = Callable[..., dict[str, Any]]
RunArchive = Callable[..., dict[str, Any]]
QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for few rows: optimizations for many rows take longer than such a query."""
JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m"
"""Only the first compiler tier, but room for all its code, and no early collections of classes."""
QUICK_JAVA = {
    "spark__sql__shuffle__partitions": "2",  # the product sets it as well
    "spark__driver__extraJavaOptions": f"{JAVA} -XX:-UseParallelGC -XX:+UseSerialGC -Xmn400m",
}


@pytest.fixture(scope="session", autouse=True)
def _quick_spark() -> Iterator[None]:
    """Let each Java that a test starts map its classes, and use only the first compiler tier.

    Few rows do not repay more. Spark's settings are no folder for SPARK_CONF_DIR: it would be part
    of the class path, and Java maps classes only with the class path that their file was made with.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JDK_JAVA_OPTIONS", f"{JAVA} {java_classes.options()}")
        settings_ = " ".join(f"-D{name}={value}" for name, value in QUICK.items())
        patched.setenv("SPARK_SUBMIT_OPTS", settings_)
        yield


@pytest.fixture(scope="session", autouse=True)
def _archive_reader_runs_elsewhere() -> Iterator[None]:
    """Fail a test that reads with the archive's reader in this process.

    When the reader closes a SQLite file, the locks of this process are gone. The next process that
    closes the file deletes its write-ahead log, and later tests find a malformed database.
    """

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("Read in another process: use the fixture elsewhere.")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connectorx, "read_sql", refuse)
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
    with session.start(_settings(address, folder), "tests", **QUICK_JAVA) as started:
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
        # Wait until rows made just now may be read.
        time.sleep(LIST_REFRESH.total_seconds())
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
