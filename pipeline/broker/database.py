"""Connect to the database through its own driver, for the ledger, the runs and the reports.

Bulk reads use broker/source.py instead. Statements use ``%s`` for values on every database. What
differs between databases is here, one class for each; no other module asks which it is.
"""

import logging
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

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
ERRORS: tuple[type[Exception], ...] = (sqlite3.Error, *([MySQLdb.Error] if MySQLdb else []))
"""Exceptions of the drivers."""
NO_TABLE, NO_COLUMN, NO_PRIVILEGE, UNKNOWN_VARIABLE = 1146, 1054, 1227, 1193
"""MySQL's error numbers."""
LIST_RESOLUTION = timedelta(seconds=1)
"""MySQL's list of transactions has whole seconds."""
LIST_REFRESH = timedelta(milliseconds=100)
"""InnoDB refreshes that list every tenth of a second at most, so it may lack newer transactions."""
OLDEST_TRANSACTION = (
    "SELECT MAX(TIMESTAMPDIFF(SECOND, trx_started, NOW())) FROM information_schema.innodb_trx "
    "WHERE trx_autocommit_non_locking = 0 AND trx_is_read_only = 0"
)
"""Age of the oldest transaction that may write. The server computes it from its own clock, so
clocks of hosts are never compared."""
logger = logging.getLogger(__name__)
FALLBACK_MARGIN = timedelta(minutes=15)
"""Margin where their ages cannot be read. No statement of the broker takes a minute."""


class InvalidAddress(Exception):
    """The address of the database is invalid or unusable. The message contains no password."""


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """The address of a database."""

    dialect: "Dialect"
    name: str
    """Name of the database; a path for SQLite."""
    host: str = ""
    port: int = 3306
    user: str = ""
    password: str = ""
    options: tuple[tuple[str, str], ...] = ()


class Dialect(ABC):
    """What the pipeline must know of a database."""

    schemes: tuple[str, ...]
    """How an address may begin."""
    begin: str
    """Begins a transaction that may write."""
    locked = " FOR UPDATE"
    """The end of a query that locks its rows until the transaction ends."""
    whole_division = "/"
    """Divides integers, and leaves out the remainder."""
    hole = "%s"
    """What stands for a value in a statement."""
    clock_query = ""
    """Returns the time in UTC; empty for a database without a clock of its own."""

    @abstractmethod
    def parse(self, parts: SplitResult) -> DatabaseAddress:
        """Return the address."""

    @abstractmethod
    def connect(self, address: DatabaseAddress) -> Any:
        """Return a connection of the driver. Raises InvalidAddress."""

    @abstractmethod
    def reader_url(self, address: DatabaseAddress) -> str:
        """Return the address in the form that connectorx reads."""

    def to_column(self, naive: datetime) -> Any:
        """Convert naive UTC to what the driver writes."""
        return naive

    @abstractmethod
    def oldest_transaction(self, database: "Database") -> timedelta | None:
        """Return the age of the oldest one that may write, or more; None if it may not be read."""


class SQLite(Dialect):
    """A file with one writer at a time."""

    schemes = ("sqlite",)
    begin = "BEGIN IMMEDIATE"
    """Waits for the write lock."""
    locked = ""
    hole = "?"

    def parse(self, parts: SplitResult) -> DatabaseAddress:
        """``sqlite:///path``."""
        return DatabaseAddress(self, unquote(parts.path.removeprefix("/")) or ":memory:")

    def connect(self, address: DatabaseAddress) -> Any:
        """Only a file that exists: SQLite would create an empty database."""
        if not Path(address.name).exists():
            raise InvalidAddress(
                f"There is no database {address.name}: is DATABASE_URL the broker's?"
            )
        connection = sqlite3.connect(address.name, timeout=LOCK_TIMEOUT_S, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def reader_url(self, address: DatabaseAddress) -> str:
        return f"sqlite://{quote(str(Path(address.name).absolute()))}"

    def to_column(self, naive: datetime) -> Any:
        """As Django writes it."""
        return str(naive)

    def oldest_transaction(self, database: "Database") -> timedelta | None:
        """There is one writer at a time, and the others wait less than the usual margin."""
        return timedelta(0)


class MySQL(Dialect):
    """MySQL and MariaDB."""

    schemes = ("mysql", "mysql2")
    begin = "START TRANSACTION"
    whole_division = "DIV"
    clock_query = "SELECT UTC_TIMESTAMP(6)"

    def parse(self, parts: SplitResult) -> DatabaseAddress:
        """``mysql://user:password@host:port/name``."""
        return DatabaseAddress(
            self,
            unquote(parts.path.lstrip("/")),
            parts.hostname or "127.0.0.1",
            parts.port or 3306,
            unquote(parts.username or ""),
            unquote(parts.password or ""),
            tuple(parse_qsl(parts.query)),
        )

    def connect(self, address: DatabaseAddress) -> Any:
        """As in the broker's own connections: no gap locks, and commits of others are visible."""
        if MySQLdb is None:
            raise InvalidAddress(
                "mysql:// needs the package mysqlclient: install the extra `mysql`."
            )
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
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            **{name: value for name, value in address.options if name in ("unix_socket",)},
        )
        # A separate statement, since ``init_command`` accepts only one.
        connection.query("SET time_zone = '+00:00'")
        try:
            connection.query("SET SESSION innodb_snapshot_isolation = OFF")
        except MySQLdb.OperationalError as error:
            if error.args[:1] != (UNKNOWN_VARIABLE,):  # MySQL, and MariaDB before 10.6.18
                raise
        return connection

    def reader_url(self, address: DatabaseAddress) -> str:
        login = quote(address.user, safe="")
        if address.password:
            login += f":{quote(address.password, safe='')}"
        return f"mysql://{login}@{address.host}:{address.port}/{quote(address.name)}"

    def oldest_transaction(self, database: "Database") -> timedelta | None:
        """It needs the privilege PROCESS."""
        try:
            age_s = database.read(OLDEST_TRANSACTION)[0][0]
        except MySQLdb.Error as error:
            if error.args[:1] != (NO_PRIVILEGE,):
                raise
            return None
        return LIST_REFRESH if age_s is None else timedelta(seconds=int(age_s)) + LIST_RESOLUTION


DIALECTS = {scheme: dialect for dialect in (SQLite(), MySQL()) for scheme in dialect.schemes}


def parse(url: str) -> DatabaseAddress:
    """``sqlite:///path`` or ``mysql://user:password@host:port/name``. Raises InvalidAddress."""
    parts = urlsplit(url)
    if parts.scheme not in DIALECTS:
        raise InvalidAddress(f"{parts.scheme or 'Nothing'} is no database: sqlite:/// or mysql://.")
    return DIALECTS[parts.scheme].parse(parts)


class Database:
    """One connection. Threads must not share it."""

    def __init__(self, url: str) -> None:
        address = parse(url)
        self.dialect = address.dialect
        self._connection = self.dialect.connect(address)

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
            cursor.executemany(
                sql.replace("%s", self.dialect.hole), [self._values(row) for row in rows]
            )
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
        """Run the block in a transaction."""
        self._run(self.dialect.begin).close()
        try:
            yield
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()

    def now(self) -> datetime:
        """Return the database's time in UTC; this machine's where it has no clock."""
        if not self.dialect.clock_query:
            return datetime.now(UTC)
        return instant(self.read(self.dialect.clock_query)[0][0])

    def readable_until(self, lag: timedelta) -> datetime:
        """Return an instant: each row whose key was generated before it is readable.

        Keys rise with the time at which a process generated them, but their rows are committed a
        little later, and in another order: a reader of all rows up to the highest key would miss
        those with a lower key that commit afterwards. Every transaction that is still open began
        after the instant, with a margin of ``lag``, the longest time between generating a key and
        beginning its transaction. Needs the privilege PROCESS on MySQL and MariaDB; without it the
        margin is a quarter of an hour.
        """
        # Before the query: transactions that begin after it can only have newer keys.
        now = self.now()
        oldest = self.dialect.oldest_transaction(self)
        if oldest is None:
            logger.warning(
                "no privilege PROCESS: reading only what is older than %s", FALLBACK_MARGIN
            )
            return now - max(lag, FALLBACK_MARGIN)
        return now - oldest - lag

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _run(self, sql: str, values: Sequence[Any] = ()) -> Any:
        cursor = self._connection.cursor()
        try:
            # Pass no values rather than an empty tuple, so that the driver leaves percent signs
            # alone.
            cursor.execute(
                sql.replace("%s", self.dialect.hole), *([self._values(values)] if values else [])
            )
        except BaseException:
            cursor.close()
            raise
        return cursor

    def _values(self, values: Sequence[Any]) -> list[Any]:
        return [self.to_column(value) if isinstance(value, datetime) else value for value in values]

    def to_column(self, at: datetime) -> Any:
        """Convert an instant to a column's format."""
        return self.dialect.to_column(at.astimezone(UTC).replace(tzinfo=None))


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
