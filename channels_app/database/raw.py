"""Execute SQL on the hot tables without the ORM, and add index hints to querysets.

The statements are still built from the models: columns that a statement does not name get the
default of their field, so that new fields are included.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from django.db import connection, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql.datastructures import BaseTable

from channels_app.database import dialects

dialect = dialects.of(connection)
"""That of the broker's database."""
MAX_ROWS = 1000
"""Maximum rows of one INSERT: SQLite limits the number of values in a statement."""
MAX_BYTES = 4 * 1024 * 1024
"""Maximum bytes in the long columns of one INSERT, unless a single row is larger. Quoting may
double the size, and servers reject statements above ``max_allowed_packet`` (16 MiB on MariaDB)."""
LONG_BLOB = 256 * 1024
"""Size from which bytes are passed to the driver instead: the text of a statement is copied several
times, and hexadecimal doubles its length."""
Row = tuple[Sequence[int], Sequence[Any]]
"""The integers and the other values of one row."""
Statement = tuple[str, list[Any]]
"""SQL and the values that the driver quotes into it."""
M = TypeVar("M", bound=models.Model)
R = TypeVar("R")


class Insert:
    """INSERT of many rows of one model.

    ``numbers`` names integer columns that are never null; they are formatted into the statement,
    which takes a sixth of the time of quoting by the driver. ``values`` names other columns that
    differ from row to row, ``same`` the columns with one value for all rows.
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
        # Bytes as hexadecimal: driver and server scan each byte of a quoted string several times.
        self._blobs = _places(fields, values, models.BinaryField)
        self._long = _places(fields, values, models.TextField, models.JSONField)
        holes = ["%d"] * len(numbers) + ["%s"] * len(values)
        self._row = f"({', '.join((*holes, *fixed.values()))})"

    def write(self, rows: Iterable[Row]) -> None:
        """Insert ``rows`` in order, in as few statements as servers take."""
        for sql, values in self.statements(rows):
            execute(sql, values)

    def statements(self, rows: Iterable[Row]) -> Iterator[Statement]:
        """The statements that ``write`` executes."""
        texts: list[str] = []
        values: list[Any] = []
        room = MAX_BYTES
        for numbers, cells in rows:
            size = sum(len(cells[place] or "") for place in (*self._blobs, *self._long))
            if texts and (room < size or len(texts) == MAX_ROWS):
                yield self._head + ", ".join(texts), values
                texts, values, room = [], [], MAX_BYTES
            own = [
                _blob(value, values) if place in self._blobs else _short(value, values)
                for place, value in enumerate(cells)
            ]
            texts.append(self._row % (*numbers, *own))
            room -= size
        if texts:
            yield self._head + ", ".join(texts), values


def execute(sql: str, values: Sequence[Any] = ()) -> int:
    """Execute a writing statement; return the number of rows it matched."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return int(cursor.rowcount)


def execute_all(statements: Sequence[Statement]) -> list[int]:
    """Execute writing statements, in order; return the number of rows that each matched.

    Takes one round trip on MySQL. Use it inside a transaction, so that an error undoes all of them.
    """
    if not dialect.takes_packets or not fit_together(statements):
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
        # Do not commit only a part: this error ends the transaction.
        raise dialect.lost("The server did not answer for all of a packet.")
    return counts


def execute_last(statements: Sequence[Statement]) -> None:
    """Execute writing statements and COMMIT, in one round trip on MySQL.

    Must be the last action of the transaction: a later error does not undo anything.
    """
    if not dialect.takes_packets or connection.savepoint_ids or not fit_together(statements):
        execute_all(statements)
        return
    execute_all([*statements, ("COMMIT", [])])
    connection.ended = True  # type: ignore[attr-defined]  # of our own backend (broker_site)


def fit_together(statements: Sequence[Statement]) -> bool:
    """Whether these statements fit into one packet, provided that each of them does."""
    size = 0
    for sql, values in statements:
        size += len(sql)
        size += sum([len(value) for value in values if isinstance(value, str | bytes)])
    return size <= MAX_BYTES


def read(sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run a query and return all its rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall())


def read_all(statements: Sequence[Statement]) -> list[list[tuple[Any, ...]]]:
    """Run queries in order and return the rows of each, in one round trip on MySQL."""
    if not dialect.takes_packets:
        return [read(sql, values) for sql, values in statements]
    with connection.cursor() as cursor:
        cursor.execute(
            "; ".join([sql for sql, _ in statements]),
            [value for _, values in statements for value in values],
        )
        results = [list(cursor.fetchall())]
        while cursor.nextset():
            results.append(list(cursor.fetchall()))
    if len(results) < len(statements):
        raise dialect.lost("The server did not answer for all of a packet.")
    return results


def listed(numbers: Iterable[int]) -> str:
    """Integers as the inside of ``IN (...)``; at least one is needed."""
    return ", ".join(["%d" % number for number in numbers])  # noqa: UP031 (refuses what is none)


def text(instant: datetime) -> str:
    """An instant in the format of every supported database, and of ``CAST(... AS CHAR)``."""
    return instant.astimezone(UTC).isoformat(" ")[:-6]


def instant(text: str) -> datetime:
    """Parse a column read by ``CAST(...

    AS CHAR)``, ten times as fast as the driver's conversion.
    """
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


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
        return sql + dialect.hint(self._index), params

    def relabeled_clone(self, change_map: dict[str | None, str]) -> Self:
        alias = change_map.get(self.table_alias, self.table_alias)
        return type(self)(self.table_name, alias, self._index)


def _places(fields: dict[str, Any], names: Sequence[str], *kinds: type[Any]) -> list[int]:
    return [place for place, name in enumerate(names) if isinstance(fields[name], kinds)]


def _short(value: Any, values: list[Any]) -> str:
    """A value as SQL: NULL, '' and integers literally, to spare the driver's quoting.

    Other values are appended to ``values`` for the driver.
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
    """Bytes as SQL; long ones are appended to ``values`` for the driver."""
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
