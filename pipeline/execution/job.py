"""Define jobs and the context that they run in."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from pipeline.broker import replica
from pipeline.broker.database import Database
from pipeline.broker.runs import Run
from pipeline.execution import session
from pipeline.lake.datasets import Datasets
from pipeline.settings import Settings


class JobError(Exception):
    """The request cannot be done; the message says why and what is possible."""


class Context:
    """Settings, options, database and Spark of one run."""

    def __init__(self, settings: Settings, options: Namespace, run: Run) -> None:
        self.settings = settings
        self.options = options
        self.run = run
        self.report = run.report
        self.database = Database(settings.database_url)
        self._session: AbstractContextManager[SparkSession | SparkContext] | None = None
        self._starting: Future[SparkContext] | None = None

    @cached_property
    def spark(self) -> SparkSession:
        """The Spark session, started at the first use."""
        self.report("starting Spark")
        self._session = started = session.start(self.settings, self.run.job)
        spark = started.__enter__()
        self.run.on_cancel = spark.sparkContext.cancelAllJobs
        self.run.check()
        return spark

    def start_workers(self) -> Future[SparkContext] | None:
        """Start Spark's workers in the background; may be called repeatedly.

        The returned future is done when they are ready.
        """
        if self._starting is None and "workers" not in self.__dict__:
            self._session = started = session.workers(self.settings, self.run.job)
            pool = ThreadPoolExecutor(1, "spark")
            self._starting = pool.submit(started.__enter__)
            pool.shutdown(wait=False)
        return self._starting

    @cached_property
    def workers(self) -> SparkContext:
        """Spark without SQL, for use instead of ``spark``; raises what its start raised."""
        self.start_workers()
        assert self._starting is not None
        if not self._starting.done():
            self.report("starting Spark")
        workers = self._starting.result()
        self.run.on_cancel = workers.cancelAllJobs
        self.run.check()
        return workers

    @cached_property
    def datasets(self) -> Datasets:
        """The broker's rows, from tables and lake."""
        return Datasets(self.spark, self.database, self.settings, self.catch_up)

    def catch_up(self) -> None:
        """Wait until Spark's workers read what is committed now. Raises replica.ReplicaLag."""
        replica.catch_up(self.database, self.settings, self.run)

    @property
    def lake(self) -> Path:
        """The archive's folder. Raises JobError where none is configured."""
        if self.settings.lake is None:
            raise JobError("There is no lake: set HOOKSTATION_LAKE to its folder.")
        return self.settings.lake

    def close(self) -> None:
        """End the session and the connection."""
        self.run.on_cancel = lambda: None
        if self._starting is not None:
            wait([self._starting])  # a session that is still starting cannot be ended
        if self._session is not None:
            self._session.__exit__(None, None, None)
        self.database.close()


@dataclass(frozen=True, slots=True)
class Job:
    """A job of ``python -m pipeline``."""

    name: str
    summary: str
    add_options: Callable[[ArgumentParser], None]
    work: Callable[[Context], dict[str, Any]]
    """Runs the job; returns its result in a few numbers."""
    finding: str = ""
    """Name of a result that should be 0. If it is not, the command ends with exit code 4."""
    private: tuple[str, ...] = ()
    """Options that identify a person (broker/runs.py)."""
