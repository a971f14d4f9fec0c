"""Whether a walk over many requests changed a row: tables as they are, read quickly and often."""

from collections.abc import Iterable
from functools import cache

from django.db import connection
from django.db.models import Model

Rows = set[tuple[object, ...]]

NOTED = {"last_used_at"}
"""Columns that may change: each use of a key is noted on it."""


def rows(tables: Iterable[type[Model]]) -> Rows:
    """Every row of the tables, as the database holds it."""
    found: Rows = set()
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(_select(table))
            found.update((table.__name__, *row) for row in cursor.fetchall())
    return found


@cache
def _select(table: type[Model]) -> str:
    """The statement that a model would make anew each time, which takes longer than it does."""
    columns = [field.attname for field in table._meta.fields if field.name not in NOTED]
    return str(table._default_manager.values_list(*columns).query)
