"""Walks over many requests: each one is undone, and whether it changed a row is seen."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

from django.db import connection, transaction
from django.db.models import Model

from channels_app.config_cache import config_cache

Rows = set[tuple[object, ...]]


def rows(tables: Iterable[type[Model]], *, but: str = "") -> Rows:
    """Every row of the tables, as the database holds it; ``but`` names a column that may change."""
    found: Rows = set()
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(_select(table, but))
            found.update((table.__name__, *row) for row in cursor.fetchall())
    return found


@cache
def _select(table: type[Model], but: str) -> str:
    """The statement that a model would make anew each time, which takes longer than running it."""
    columns = [field.attname for field in table._meta.fields if field.name != but]
    return str(table._default_manager.values_list(*columns).query)


@contextmanager
def undone() -> Iterator[None]:
    """What happens in here did not happen."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
    config_cache.__init__()  # type: ignore[misc]  # begins anew
