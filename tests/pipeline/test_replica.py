"""A replica that lags: jobs wait until it knows which rows have moved to the lake."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest
from django.db import connection
from pyspark.sql import SparkSession

from delivery.models import Delivery, PipelineRun
from pipeline import settings
from pipeline.broker import replica
from pipeline.lake import planning
from pipeline.settings import Settings
from pipeline.transforms import segments
from tests.pipeline import month as month_module
from tests.pipeline.conftest import RunArchive, run_with
from tests.pipeline.elsewhere import Elsewhere
from tests.pipeline.month import Month
from tests.pipeline.test_usage import stored
from tests.pipeline.whereabouts import Lake, assert_once, in_tables, prune, states

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        connection.vendor != "sqlite",
        reason="the replica is a copy of a file",
    ),
]
WAITING = """SELECT id FROM delivery_pipelinerun
WHERE state = 'running' AND stage = 'waiting for the replica'"""


class Replica:
    """A copy of the database that catches up on request."""

    def __init__(self, address: str, folder: Path) -> None:
        self.source = unquote(address.removeprefix("sqlite:///"))
        self.path = folder / "replica.sqlite3"
        self.follow()

    @property
    def url(self) -> str:
        """The replica's URL, for HOOKSTATION_LAKE_READ_URL."""
        return f"sqlite:///{self.path}"

    def follow(self) -> None:
        """Copy the database's current content."""
        with (
            closing(sqlite3.connect(self.source, timeout=60)) as source,
            closing(sqlite3.connect(self.path, timeout=60)) as copy,
        ):
            source.backup(copy)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Catch up once for each run that waits for the replica."""
        over = threading.Event()
        seen: set[int] = set()

        def follow() -> None:
            while not over.wait(0.2):
                with closing(sqlite3.connect(self.source, timeout=60)) as source:
                    waiting = {run for (run,) in source.execute(WAITING)}
                if waiting - seen:
                    seen.update(waiting)
                    self.follow()

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        assert seen


@pytest.fixture
def lagging(
    address: str, chosen: Settings, archive_job: RunArchive, monkeypatch: pytest.MonkeyPatch
) -> tuple[Month, Replica]:
    """A month of which a part has moved to the lake, and a replica from before that."""
    monkeypatch.setattr(planning, "SEGMENT_ROWS", 200)
    monkeypatch.setattr(segments, "PART_ROWS", 50)
    monkeypatch.setenv(settings.READ_URL, address)
    made = month_module.make_few_days(200)
    archive_job()
    behind = Replica(address, chosen.folder)
    assert prune() > 0
    return made, behind


def test_the_archive_takes_nothing_twice_from_a_replica_that_lags(
    lagging: tuple[Month, Replica], chosen: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, behind = lagging
    monkeypatch.setenv(settings.READ_URL, behind.url)
    executors = Elsewhere()  # its own, as processes keep the URL that they started with
    monkeypatch.setattr(segments, "_call_executor", executors.ask)
    assert chosen.lake is not None
    lake = Lake(chosen.lake)
    before = {name: in_tables()[name] | rows for name, rows in lake.rows().items()}
    there = replace(chosen, read_url=behind.url)

    try:
        with behind.following():
            for _ in range(4):
                run_with(there, None, "archive")
                prune()
    finally:
        executors.close()

    assert set(states()) == {"pruned"}
    assert_once(before, lake)


def test_a_replica_that_stays_behind_is_refused(
    lagging: tuple[Month, Replica],
    chosen: Settings,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, behind = lagging
    monkeypatch.setattr(replica, "CATCH_UP_TIMEOUT_S", 1.5)
    there = replace(chosen, read_url=behind.url)

    with pytest.raises(replica.ReplicaLag, match="HOOKSTATION_LAKE_READ_URL is more than this run"):
        run_with(there, spark, "usage", since=made.since.isoformat())

    assert stored() == {}
    assert PipelineRun.objects.latest("id").state == "failed"
    assert Delivery.objects.count() < len(made.deliveries)
