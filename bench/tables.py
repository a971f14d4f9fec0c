"""Fill the broker's tables with history, and create small tables for comparison."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from bench import databases, inside
from bench.adapters import BenchError
from bench.broker import Hookstation
from bench.stage import Stage

NOBODY = 1_000_000
"""First number of messages that no measurement watches."""
SMALL_NAME = "small_tables"
Variables = Mapping[str, str]
SMALL_WAITING = 40_000
"""Waiting rows in the small tables, enough for all claims."""


def fill(stage: Stage, *, finished: int = 0, waiting: int = 0, failing: int = 0) -> float:
    """Create so many messages of each kind (0 changes nothing); returns the seconds that it took.

    Finished ones were delivered to one consumer and are dead at another, so that there are as many
    dead letters. Raises BenchError when the counters do not add up afterwards.
    """
    return _fill(stage, ours(stage).environment, finished, waiting, failing)


def ours(stage: Stage) -> Hookstation:
    """Return the broker, for rows that measure only Hookstation."""
    assert isinstance(stage.broker, Hookstation)
    return stage.broker


def name(stage: Stage) -> str:
    """Return the name of the broker's database."""
    return urlsplit(stage.database.url).path.removeprefix("/")


def cursor(stage: Stage) -> AbstractContextManager[Any]:
    """Return a cursor on the database server."""
    at = urlsplit(stage.database.url)
    return databases.connect(at.hostname, at.port, at.username, at.password)


@contextmanager
def small(stage: Stage, name: str = SMALL_NAME, *, scheduled: int = 0) -> Iterator[Variables]:
    """Provide environment variables for processes that use small tables on the same server."""
    url = urlsplit(stage.database.url)._replace(path=f"/{name}").geturl()
    variables = {**ours(stage).environment, "DATABASE_URL": url}
    with cursor(stage) as server:
        server.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        try:
            _fill(stage, variables, 0, SMALL_WAITING, SMALL_WAITING // 10, scheduled)
            yield variables
        finally:
            server.execute(f"DROP DATABASE {name}")


def _fill(
    stage: Stage,
    variables: Variables,
    finished: int,
    waiting: int,
    failing: int,
    scheduled: int = 0,
) -> float:
    sizes = (stage.sizes.rows, finished, waiting, failing, scheduled)
    found = inside.run("history", variables, stage.sink.url(NOBODY), *sizes, tell=stage.tell)
    if found["gap"]:
        raise BenchError(f"The accounting gap is {found['gap']}.")
    return float(found["seconds"])
