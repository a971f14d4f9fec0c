"""Two hosts on one database."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.broker import Broker, database_with_key


@contextmanager
def two_hosts(folder: Path, **settings: str) -> Iterator[tuple[Broker, Broker]]:
    """Run two hosts on a database of their own."""
    with database_with_key(folder) as (url, key):
        one = Broker(_made(folder / "one"), url, **settings)
        one.use(key)
        try:
            one.start()
            with another_host(one, folder / "other", **settings) as other:
                yield one, other
        finally:
            one.end()


@contextmanager
def another_host(broker: Broker, folder: Path, **settings: str) -> Iterator[Broker]:
    """Run one more host on the database of a broker."""
    other = Broker(_made(folder), broker.environment["DATABASE_URL"], **settings)
    other.http.headers.update(broker.http.headers)
    try:
        other.start()
        yield other
    finally:
        other.end()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
