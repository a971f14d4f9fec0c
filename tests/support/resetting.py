"""Empty the tables after a test that commits, in a tenth of the time of Django's flush.

Django deletes from every table, and then creates content types, permissions and groups anew. Here
these stay, and only tables that have rows are emptied. Django's flush runs if a test has changed
what stays.
"""

from typing import Any

from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.core.management.color import no_style
from django.db import connection
from django.db.models import Count, Model, Sum
from django.db.models.functions import Length
from django.test import TransactionTestCase

STAY: dict[type[Model], Any] = {
    ContentType: Length("model"),
    Permission: Length("name"),
    Group: Length("name"),
    Group.permissions.through: "permission_id",
}
"""The rows that `migrate` creates, and what besides their ids shows that they are the same."""


class Tables:
    """The tables of the test database, as `migrate` has left them."""

    def __init__(self) -> None:
        staying = {model._meta.db_table for model in STAY}
        names = connection.introspection.django_table_names(only_existing=True, include_views=False)
        self._others = sorted(set(names) - staying)
        self._filled = " UNION ALL ".join(
            f"SELECT {number} FROM (SELECT 1 AS one) AS row_"  # noqa: S608  # names of our tables
            f" WHERE EXISTS (SELECT 1 FROM {connection.ops.quote_name(name)})"
            for number, name in enumerate(self._others)
        )
        self._at_start = self._sums()

    def empty(self) -> bool:
        """Empty the tables; returns False, having done nothing, if rows that stay have changed."""
        if self._sums() != self._at_start:
            return False
        with connection.cursor() as cursor:
            cursor.execute(self._filled)
            filled = [self._others[number] for (number,) in cursor.fetchall()]
        connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), filled))
        return True

    def _sums(self) -> list[Any]:
        return [
            model._default_manager.aggregate(Count("id"), Sum("id"), of=Sum(expression))
            for model, expression in STAY.items()
        ]


def install() -> None:
    """Empty tables this way from now on. Call it when the test database has been created."""
    tables = Tables()
    flush = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]  # not in the stubs

    def teardown(test: TransactionTestCase) -> None:
        nonlocal tables
        if not tables.empty():
            flush(test)
            tables = Tables()

    TransactionTestCase._fixture_teardown = teardown  # type: ignore[attr-defined]  # as above
