"""Add index hints to querysets where MariaDB chooses a slow plan for a range."""

from typing import Any, Self, TypeVar

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql.datastructures import BaseTable

M = TypeVar("M", bound=models.Model)
R = TypeVar("R")


def by_index(rows: "models.QuerySet[M, R]", name: str) -> "models.QuerySet[M, R]":
    """Return the same rows, read through this index of their table.

    For ``a = ? AND id < ? ORDER BY id DESC LIMIT ?`` with an index (a, id). MariaDB limits its
    estimates to half of a table. If the range then seems as large as all rows with that ``a``, it
    reads those, newest first: 150,000 rows for a page in the middle of 300,000.
    """
    rows = rows.all()
    alias = rows.query.get_initial_alias()
    assert alias is not None
    table = rows.query.alias_map[alias]
    rows.query.alias_map[alias] = _Forced(table.table_name, alias, name)
    return rows


class _Forced(BaseTable):
    def __init__(self, table_name: str, alias: str | None, index: str) -> None:
        super().__init__(table_name, alias)
        self._index = index

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> Any:
        sql, params = super().as_sql(compiler, connection)
        hint = f" FORCE INDEX ({self._index})" if connection.vendor == "mysql" else ""
        return sql + hint, params

    def relabeled_clone(self, change_map: dict[str | None, str]) -> Self:
        alias = change_map.get(self.table_alias, self.table_alias)
        return type(self)(self.table_name, alias, self._index)
