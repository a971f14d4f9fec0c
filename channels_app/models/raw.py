"""Raw: statements on the hot tables without the ORM, whose own work costs more than the database's.

What is written here is still made from the models: a column that a statement does not name gets
its field's default, so that a new field is never forgotten.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import OperationalError, connection, models

LOST = 2013
"""MySQL: the connection broke during a statement."""
MAX_ROWS = 1000
"""Of one INSERT: SQLite limits the values of a statement, servers its bytes."""
MAX_BYTES = 4 * 1024 * 1024
"""Of one INSERT's long columns, unless a single row has more. Quoted they may take twice as much,
and servers refuse what is above ``max_allowed_packet`` (16 MiB on MariaDB)."""

LONG_BLOB = 256 * 1024
"""Bytes from which a value goes to the driver as it is: the text of a statement is copied several
times, and hexadecimal is twice as long."""

Row = tuple[Sequence[int], Sequence[Any]]
"""The numbers and the other values of one row."""
Statement = tuple[str, list[Any]]
"""SQL and the values that the driver quotes into it."""


class Insert:
    """INSERT of many rows of one model.

    ``numbers`` names integer columns that are never null: they stand in the statement as they are,
    at a sixth of the price of a value that the driver quotes. ``values`` names any others that
    differ from row to row, ``same`` the columns that have one value in all rows.
    """

    def __init__(
        self,
        model: type[models.Model],
        *,
        numbers: Sequence[str],
        values: Sequence[str],
        same: dict[str, str | int] | None = None,
    ) -> None:
        fields = {str(field.column): field for field in model._meta.concrete_fields}
        fixed = {
            name: _literal((same or {}).get(name, field.get_default()))
            for name, field in fields.items()
            if name not in (*numbers, *values)
        }
        self._head = (
            f"INSERT INTO {model._meta.db_table} ({', '.join((*numbers, *values, *fixed))}) VALUES "
        )
        # Bytes in hexadecimal: the driver and the server look at each byte of a text several times.
        self._blobs = _places(fields, values, models.BinaryField)
        self._long = _places(fields, values, models.TextField, models.JSONField)
        holes = ["%d"] * len(numbers) + ["%s"] * len(values)
        self._row = f"({', '.join((*holes, *fixed.values()))})"

    def write(self, rows: Iterable[Row]) -> None:
        """Insert ``rows`` in order, in as few statements as servers take."""
        for sql, values in self.statements(rows):
            execute(sql, values)

    def statements(self, rows: Iterable[Row]) -> Iterator[Statement]:
        """What ``write`` executes."""
        texts: list[str] = []
        values: list[Any] = []
        room = MAX_BYTES
        for numbers, others in rows:
            size = sum(len(others[place] or "") for place in (*self._blobs, *self._long))
            if texts and (room < size or len(texts) == MAX_ROWS):
                yield self._head + ", ".join(texts), values
                texts, values, room = [], [], MAX_BYTES
            own = [
                _blob(value, values) if place in self._blobs else _short(value, values)
                for place, value in enumerate(others)
            ]
            texts.append(self._row % (*numbers, *own))
            room -= size
        if texts:
            yield self._head + ", ".join(texts), values


def execute(sql: str, values: Sequence[Any] = ()) -> int:
    """Run a statement that writes; how many rows it found."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return int(cursor.rowcount)


def execute_all(statements: Sequence[Statement]) -> list[int]:
    """Run statements that write, in order; how many rows each found.

    One round trip on MySQL: for use inside a transaction, where an error undoes them all.
    """
    if connection.vendor != "mysql" or not fit_together(statements):
        return [execute(sql, values) for sql, values in statements]
    with connection.cursor() as cursor:
        cursor.execute(
            "; ".join([sql for sql, _ in statements]),
            [value for _, values in statements for value in values],
        )
        counts = [int(cursor.rowcount)]
        while cursor.nextset():
            counts.append(int(cursor.rowcount))
    if len(counts) < len(statements):
        # What was left out must not be committed without: the transaction ends here.
        raise OperationalError(LOST, "The server did not answer for all of a packet.")
    return counts


def execute_last(statements: Sequence[Statement]) -> None:
    """Run statements that write, and end their transaction with them: one round trip on MySQL.

    For use as the last thing inside it: what raises afterwards undoes nothing any more.
    """
    if connection.vendor != "mysql" or connection.savepoint_ids or not fit_together(statements):
        execute_all(statements)
        return
    execute_all([*statements, ("COMMIT", [])])
    connection.ended = True  # type: ignore[attr-defined]  # of our own backend (broker_site.mysql)


def fit_together(statements: Sequence[Statement]) -> bool:
    """Whether servers take these in one packet, each of them being one that they take."""
    size = 0
    for sql, values in statements:
        size += len(sql)
        size += sum([len(value) for value in values if isinstance(value, str | bytes)])
    return size <= MAX_BYTES


def read(sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run a query; all its rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall())


def read_all(statements: Sequence[Statement]) -> list[list[tuple[Any, ...]]]:
    """Run queries, in order; the rows of each. One round trip on MySQL."""
    if connection.vendor != "mysql":
        return [read(sql, values) for sql, values in statements]
    with connection.cursor() as cursor:
        cursor.execute(
            "; ".join([sql for sql, _ in statements]),
            [value for _, values in statements for value in values],
        )
        found = [list(cursor.fetchall())]
        while cursor.nextset():
            found.append(list(cursor.fetchall()))
    if len(found) < len(statements):
        raise OperationalError(LOST, "The server did not answer for all of a packet.")
    return found


def union(queries: Iterable[str]) -> str:
    """The rows of all ``queries``, each of which may have an order and a limit of its own.

    Queries in parentheses MySQL reads one after the other. As tables in FROM, the only form that
    SQLite has, each one's rows are stored first: a third to three quarters more work.
    """
    if connection.vendor == "mysql":
        return " UNION ALL ".join([f"({query})" for query in queries])
    tables = [f"({query}) AS t{place}" for place, query in enumerate(queries)]
    return " UNION ALL ".join([f"SELECT * FROM {table}" for table in tables])


def listed(numbers: Iterable[int]) -> str:
    """Whole numbers as the inside of ``IN (...)``; there must be one."""
    return ", ".join(["%d" % number for number in numbers])  # noqa: UP031 (refuses what is none)


def locked() -> str:
    """The end of a query that locks its rows; SQLite has one writer at a time and no words."""
    return " FOR UPDATE" if connection.vendor == "mysql" else ""


def skip_locked() -> str:
    """The same, passing over rows that others hold."""
    return " FOR UPDATE SKIP LOCKED" if connection.vendor == "mysql" else ""


def text(instant: datetime) -> str:
    """An instant as every supported database takes it, and as ``CAST(... AS CHAR)`` gives it."""
    return instant.astimezone(UTC).isoformat(" ")[:-6]


def instant(text: str) -> datetime:
    """The instant of a column read as ``CAST(... AS CHAR)``: ten times the driver's own speed."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _places(fields: dict[str, Any], names: Sequence[str], *kinds: type[Any]) -> list[int]:
    return [place for place, name in enumerate(names) if isinstance(fields[name], kinds)]


def _short(value: Any, values: list[Any]) -> str:
    """A value as it stands in a statement: most are nothing, and the driver would quote that too.

    Any other is added to ``values``, for the driver.
    """
    if value is None:
        return "NULL"
    if value == "":
        return "''"
    if type(value) is int:
        return str(value)
    values.append(value)
    return "%s"


def _blob(value: bytes | None, values: list[Any]) -> str:
    """Bytes as they stand in a statement; what is long is added to ``values``, for the driver."""
    if value is None:
        return "NULL"
    if len(value) > LONG_BLOB:
        values.append(value)
        return "%s"
    return f"X'{value.hex()}'"


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(int(value))
    if value == b"":
        return "X''"
    assert isinstance(value, str), value
    assert value.isidentifier() or not value, value
    return f"'{value}'"
