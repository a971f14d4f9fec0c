"""Connect to the database through its own driver, for the ledger, the runs and the reports.

Bulk reads use broker/source.py instead. Statements use ``%s`` for values on every database.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pipeline.settings import command

try:
    import MySQLdb
    from MySQLdb.constants import CLIENT
except ImportError:  # Not installed with SQLite.
    MySQLdb = CLIENT = None

LOCK_TIMEOUT_S = 60.0
"""Seconds to wait for SQLite's write lock."""
RESPONSE_TIMEOUT_S = 600
"""Seconds to wait for a response from the server."""
INSERT_ROWS = 2000
"""Rows of a report in one statement."""
MYSQL = ("mysql", "mysql2")
ERRORS: tuple[type[Exception], ...] = (sqlite3.Error, *([MySQLdb.Error] if MySQLdb else []))
"""Exceptions of the drivers."""
NO_TABLE, NO_COLUMN = 1146, 1054
"""MySQL's error numbers."""


class InvalidAddress(Exception):
    """The address of the database is invalid or unusable. The message contains no password."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a database."""

    vendor: str
    """``sqlite`` or ``mysql``."""
    name: str
    """Name of the database; a path for SQLite."""
    host: str = ""
    port: int = 3306
    user: str = ""
    password: str = ""
    options: tuple[tuple[str, str], ...] = ()


def parse(url: str) -> Address:
    """``sqlite:///path`` or ``mysql://user:password@host:port/name``. Raises InvalidAddress."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return Address("sqlite", unquote(parts.path.removeprefix("/")) or ":memory:")
    if parts.scheme not in MYSQL:
        raise InvalidAddress(f"{parts.scheme or 'Nothing'} is no database: sqlite:/// or mysql://.")
    return Address(
        "mysql",
        unquote(parts.path.lstrip("/")),
        parts.hostname or "127.0.0.1",
        parts.port or 3306,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        tuple(parse_qsl(parts.query)),
    )


class Database:
    """One connection. Threads must not share it."""

    def __init__(self, url: str) -> None:
        self.address = parse(url)
        self.is_mysql = self.address.vendor == "mysql"
        self._connection = _connect(self.address)

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        cursor = self._run(sql, values)
        try:
            return list(cursor.fetchall())
        finally:
            cursor.close()

    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; returns how many rows it matched (on MySQL: changed or not)."""
        cursor = self._run(sql, values)
        try:
            return int(cursor.rowcount)
        finally:
            cursor.close()

    def insert(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Insert one row; returns the key that the database generated."""
        cursor = self._run(sql, values)
        try:
            return int(cursor.lastrowid)
        finally:
            cursor.close()

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run the same statement for many rows."""
        cursor = self._connection.cursor()
        try:
            cursor.executemany(self._sql(sql), [self._values(row) for row in rows])
        finally:
            cursor.close()

    def replace_rows(
        self,
        table: str,
        column: str,
        since: datetime | str,
        until: datetime | str,
        names: Sequence[str],
        rows: Sequence[Sequence[Any]],
    ) -> None:
        """Replace a report's rows from ``since`` up to ``until`` with these.

        Call it in a transaction, so that readers never see a part.
        """
        self.execute(f"DELETE FROM {table} WHERE {column} >= %s AND {column} < %s", [since, until])
        holes = ", ".join(["%s"] * len(names))
        sql = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({holes})"
        for start in range(0, len(rows), INSERT_ROWS):
            self.execute_many(sql, rows[start : start + INSERT_ROWS])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in a transaction. SQLite waits for the write lock when it begins."""
        self._run("START TRANSACTION" if self.is_mysql else "BEGIN IMMEDIATE").close()
        try:
            yield
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()

    def now(self) -> datetime:
        """Return the database's time in UTC. SQLite has no clock, so it is this machine's time."""
        if not self.is_mysql:
            return datetime.now(UTC)
        return instant(self.read("SELECT UTC_TIMESTAMP(6)")[0][0])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _run(self, sql: str, values: Sequence[Any] = ()) -> Any:
        cursor = self._connection.cursor()
        try:
            # Pass no values rather than an empty tuple, so that the driver leaves percent signs
            # alone.
            cursor.execute(self._sql(sql), *([self._values(values)] if values else []))
        except BaseException:
            cursor.close()
            raise
        return cursor

    def _sql(self, sql: str) -> str:
        return sql if self.is_mysql else sql.replace("%s", "?")

    def _values(self, values: Sequence[Any]) -> list[Any]:
        return [self.to_column(value) if isinstance(value, datetime) else value for value in values]

    def to_column(self, at: datetime) -> Any:
        """Convert an instant to a column's format: naive UTC, on SQLite as Django writes it."""
        naive = at.astimezone(UTC).replace(tzinfo=None)
        return naive if self.is_mysql else str(naive)


def error_message(error: BaseException) -> str:
    """Return a driver's error as a sentence with a remedy."""
    text = str(error)
    if text.startswith("no such ") or error.args[:1] in ((NO_TABLE,), (NO_COLUMN,)):
        return f"The database is not of this version ({text}): run {command()} migrate."
    return f"The database: {type(error).__name__}: {text}"[:2000]


def instant(value: Any) -> datetime:
    """Convert a column to an instant: SQLite returns text, MySQL naive UTC."""
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return at.replace(tzinfo=UTC)


def _connect(address: Address) -> Any:
    if address.vendor == "sqlite":
        if not Path(address.name).exists():
            # SQLite would create an empty database.
            raise InvalidAddress(
                f"There is no database {address.name}: is DATABASE_URL the broker's?"
            )
        connection = sqlite3.connect(address.name, timeout=LOCK_TIMEOUT_S, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        return connection
    if MySQLdb is None:
        raise InvalidAddress("mysql:// needs the package mysqlclient: install the extra `mysql`.")
    connection = MySQLdb.connect(
        host=address.host,
        port=address.port,
        user=address.user,
        password=address.password,
        database=address.name,
        charset="utf8mb4",
        autocommit=True,
        connect_timeout=5,
        read_timeout=RESPONSE_TIMEOUT_S,
        client_flag=CLIENT.FOUND_ROWS,
        # As in the broker's own connections: no gap locks, and commits of others are visible.
        init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        **{name: value for name, value in address.options if name in ("unix_socket",)},
    )
    # A separate statement, since ``init_command`` accepts only one.
    connection.query("SET time_zone = '+00:00'")
    return connection
