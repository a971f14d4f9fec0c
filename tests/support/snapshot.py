"""Detect changes of rows by requests, and undo them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from django.db import connection, transaction
from django.db.models import Model

from channels_app.registry.cache import config_cache

Rows = set[tuple[object, ...]]
READS = ("SELECT", "SAVEPOINT", "RELEASE", "ROLLBACK")
"""Beginnings of statements that change no row."""


def rows(tables: Iterable[type[Model]], *, but: str = "") -> Rows:
    """Return every row of the tables, as stored; ``but`` names a column that may change."""
    found: Rows = set()
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(_select(table, but))
            found.update((table.__name__, *row) for row in cursor.fetchall())
    return found


@cache
def _select(table: type[Model], but: str) -> str:
    """Return the SELECT of a table, cached because building it takes longer than running it."""
    columns = [field.attname for field in table._meta.fields if field.name != but]
    return str(table._default_manager.values_list(*columns).query)


@contextmanager
def unwritten(tables: Iterable[type[Model]], before: Rows, *, but: str = "") -> Iterator[None]:
    """Check that no row of ``before`` is changed or deleted inside the context.

    The tables are read only after a statement that writes: reading takes longer than a request.
    """
    wrote: list[str] = []

    def note(execute: Any, sql: str, *more: Any) -> Any:
        # MariaDB may get several statements at once.
        if not all(part.lstrip().startswith(READS) for part in sql.split(";") if part.strip()):
            wrote.append(sql)
        return execute(sql, *more)

    with connection.execute_wrapper(note):
        yield
    assert not wrote or before <= rows(tables, but=but), wrote


@contextmanager
def undone() -> Iterator[None]:
    """Undo all changes made inside the context."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
    config_cache.__init__()  # type: ignore[misc]  # begins anew
