"""Large tables: the broker's own, filled with history, and small ones to compare them with."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from bench import databases, inside
from bench.adapters import BenchError
from bench.broker import Hookstation
from bench.stage import Stage

NOBODY = 1_000_000
"""Whose deliveries the sink takes and no measurement looks at."""
SMALL_NAME = "small_tables"
Variables = Mapping[str, str]
SMALL_WAITING = 40_000
"""Rows that wait in the small tables: what is claimed must be there."""


def fill(stage: Stage, *, finished: int = 0, waiting: int = 0, failing: int = 0) -> float:
    """Have so many messages of each kind (0: as it is); returns how many seconds it took.

    Finished ones were delivered to one consumer and are dead at another, so that there are as many
    dead letters. Raises BenchError when the counters do not add up afterwards.
    """
    return _fill(stage, ours(stage).environment, finished, waiting, failing)


def ours(stage: Stage) -> Hookstation:
    """The broker, in rows that are measured of ours alone."""
    assert isinstance(stage.broker, Hookstation)
    return stage.broker


def name(stage: Stage) -> str:
    """Of the database that the broker works in."""
    return urlsplit(stage.database.url).path.removeprefix("/")


def cursor(stage: Stage) -> AbstractContextManager[Any]:
    """A cursor on the database server."""
    at = urlsplit(stage.database.url)
    return databases.connect(at.hostname, at.port, at.username, at.password)


@contextmanager
def small(stage: Stage, name: str = SMALL_NAME, *, scheduled: int = 0) -> Iterator[Variables]:
    """Variables for processes that work in small tables on the same server."""
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
