"""Say what differs between databases: one class for each. No other module of the broker asks which.

`raw.dialect` is the one of the broker's database, chosen once. What a statement needs of it is
computed when its module is imported, so nothing is looked up for each row.
"""

import os
import re
import socket
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction
from django.db import Error as DatabaseFailure
from django.db.backends.base.base import BaseDatabaseWrapper


class Dialect(ABC):
    """What the broker must know of a database. The defaults are what most databases do."""

    name: str
    """Django's name of its driver's family."""
    schemes: tuple[str, ...]
    """How a DATABASE_URL of it may begin."""
    version_query: str
    """Returns the version for operators."""
    is_embedded = False
    """Whether the broker's processes write a file themselves: one at a time, without a server."""
    takes_packets = False
    """Whether the server runs several statements of one packet (`broker_site.server.mysql`)."""
    has_loose_scan = False
    """Whether it jumps in an index from group to group, and reads one entry of each."""
    clock_query = ""
    """Returns the time in UTC; empty for a database without a clock of its own."""
    locked = " FOR UPDATE"
    """The end of a query that locks its rows."""
    skip_locked = " FOR UPDATE SKIP LOCKED"
    """As `locked`, but skips rows that others have locked."""
    join_in_order = "JOIN"
    """A join that reads the tables in the order of the query."""
    key_type: str | None = None
    """Type of 64-bit primary keys; None for the usual one."""

    @abstractmethod
    def configure(self, config: dict[str, Any], data_dir: Path) -> None:
        """Add what makes commits durable to Django's settings (docs/settings.md)."""

    @abstractmethod
    def check(self, connection: BaseDatabaseWrapper) -> list[CheckMessage]:
        """What system checks report of its version and its settings."""

    def durability(self) -> tuple[str, str] | None:
        """Why the server may lose committed transactions, and what to do; None if it does not."""
        return None

    def statement_bytes(self) -> int | None:
        """The size of the longest statement that the server accepts; None without a limit."""
        return None

    def place(self, config: Mapping[str, Any]) -> str:
        """Where the database of these settings is, for operators."""
        return str(config["NAME"])

    def hint(self, index: str) -> str:
        """What forces an index, after a table's name, where this planner may choose another."""
        return ""

    def forced(self, index: str) -> str:
        """As `hint`, also where the planner only does so without statistics."""
        return self.hint(index)

    def union(self, queries: Iterable[str]) -> str:
        """Combine ``queries``, each of which may have its own order and limit, by UNION ALL."""
        return " UNION ALL ".join([f"({query})" for query in queries])

    def upsert(self, key: str, update: str) -> str:
        """The end of an INSERT that updates the row where one with this ``key`` exists."""
        return f"ON CONFLICT ({key}) DO UPDATE SET {update}"

    def new(self, column: str) -> str:
        """In such an update, the value that was to be inserted."""
        return f"excluded.{column}"

    @abstractmethod
    def span(self, column: str, width_s: int) -> str:
        """The number of the time span in which an instant lies; number 0 begins in 1970."""

    @abstractmethod
    def instant(self, value: Any) -> datetime:
        """A raw column as an aware datetime."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[None]:
        """A transaction that reads a consistent state and locks nothing."""

    def collation(self, connection: BaseDatabaseWrapper) -> str | None:
        """The collation that compares text byte by byte; None if the usual one does."""
        return None

    def answer_limit(self, seconds: int) -> dict[str, Any]:
        """Connection options with which each statement waits at most this long for a server."""
        return {}

    def is_undone(self, error: OperationalError) -> bool:
        """Whether the transaction was rolled back because of others, and may be tried again."""
        return False

    def is_away(self, error: Exception) -> bool:
        """Whether the database is unavailable: it is unknown whether it still committed."""
        return isinstance(error, OperationalError | InterfaceError)

    @abstractmethod
    def is_full(self, error: BaseException) -> bool:
        """Whether the database refused a write because there is no room."""

    @abstractmethod
    def folder(self) -> Path | None:
        """The folder of the database's files, if this host can see it."""

    @abstractmethod
    def reusable_bytes(self) -> int:
        """The free space within the database's files, which new bodies can take."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Write the log to the database, if the broker's processes do that and not a server."""


class SQLite(Dialect):
    """A file with one writer at a time, whose reads never wait."""

    name = "sqlite"
    schemes = ("sqlite",)
    version_query = "SELECT sqlite_version()"
    is_embedded = True
    locked = skip_locked = ""
    join_in_order = "CROSS JOIN"
    # Only with this type's name is the key the row id. Every index then ends with it and can sort
    # by it, as in InnoDB.
    key_type = "integer"
    GOOD = (3, 51, 3)

    def configure(self, config: dict[str, Any], data_dir: Path) -> None:
        """The file can be read by its owner only; SQLite's other files copy its mode."""
        if os.path.isabs(config["NAME"]):  # not in memory
            with suppress(OSError):  # it exists, or SQLite's own error will be clearer
                os.close(os.open(config["NAME"], os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        # IMMEDIATE: a transaction that begins with a read cannot wait for the write lock, it fails.
        # FULL: an acknowledged commit survives power loss.
        config["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=FULL;"
            "PRAGMA cache_size=-20000;PRAGMA journal_size_limit=67108864;",
            **config.get("OPTIONS", {}),
        }
        # A file instead of memory, so that threads and processes of one test share it.
        config["TEST"] = {"NAME": str(data_dir / "test.sqlite3")}

    def check(self, connection: BaseDatabaseWrapper) -> list[CheckMessage]:
        if sqlite3.sqlite_version_info >= self.GOOD:
            return []
        return [
            Warning(
                f"SQLite {sqlite3.sqlite_version} has a rare bug that can corrupt a database in "
                "WAL mode (fixed in 3.51.3).",
                hint="Use it only for trials, and for small loads with backups; "
                "use MySQL or MariaDB in production (DATABASE_URL=mysql://...).",
                id="hookstation.W002",
            )
        ]

    def forced(self, index: str) -> str:
        """Its planner has no statistics of a table that was never analysed."""
        return f" INDEXED BY {index}"

    def union(self, queries: Iterable[str]) -> str:
        """It takes order and limit only in subqueries."""
        tables = [f"({query}) AS t{place}" for place, query in enumerate(queries)]
        selects = [f"SELECT * FROM {table}" for table in tables]  # noqa: S608 (our own queries)
        return " UNION ALL ".join(selects)

    def span(self, column: str, width_s: int) -> str:
        """Without the fraction, which it would round."""
        return f"CAST(strftime('%%s', substr({column}, 1, 19)) AS INTEGER) / {width_s:d}"

    def instant(self, value: datetime | str) -> datetime:
        """The driver returns naive UTC of a column, but the stored text of an expression."""
        instant = datetime.fromisoformat(value) if isinstance(value, str) else value
        return instant.replace(tzinfo=UTC)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Not by Django's atomic(), which takes the only write lock (`configure`)."""
        with connection.cursor() as cursor:
            cursor.execute("BEGIN DEFERRED")
            try:
                yield
            finally:
                cursor.execute("ROLLBACK")

    def is_full(self, error: BaseException) -> bool:
        code = getattr(error.__cause__, "sqlite_errorcode", None)
        return bool(code == sqlite3.SQLITE_FULL)

    def folder(self) -> Path | None:
        name = str(connection.settings_dict["NAME"])
        return None if "memory" in name else Path(name).parent

    def reusable_bytes(self) -> int:
        """The pages of deleted rows: the file never shrinks."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size"
            )
            (size,) = cursor.fetchone()
        return int(size)

    def checkpoint(self) -> None:
        """As far as no reader needs it; waits for nobody."""
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")


class MySQL(Dialect):
    """MySQL and MariaDB, with InnoDB's tables."""

    name = "mysql"
    schemes = ("mysql", "mysql2")
    version_query = "SELECT VERSION()"
    takes_packets = True
    has_loose_scan = True
    clock_query = "SELECT UTC_TIMESTAMP(6)"
    join_in_order = "STRAIGHT_JOIN"

    MIN_MYSQL = (8, 0, 17)
    """The first version with a collation that compares bytes and keeps trailing blanks."""
    MIN_MARIADB = (10, 6)
    TESTED_MYSQL = ((9, 7), (9, 7))
    TESTED_MARIADB = ((10, 11), (11, 8))
    """The oldest and the newest series that `make test-databases` runs on."""
    UNDONE = 1205, 1213, 3101
    """Lock wait timeout, deadlock, group replication rolled back at certification."""
    FULL = 1021, 1114
    """A full disk or table."""
    QUOTING = 3, 28, 1026, 1030
    """Errors that quote the system's error."""
    NO_SPACE = re.compile(r"\b28\b")
    """The system's ENOSPC."""

    def configure(self, config: dict[str, Any], data_dir: Path) -> None:
        config["ENGINE"] = "broker_site.server.mysql"
        # READ COMMITTED: claims take no gap locks and see each other's commits.
        config["OPTIONS"] = {
            "charset": "utf8mb4",
            "isolation_level": "read committed",
            "connect_timeout": 5,
            **config.get("OPTIONS", {}),
        }
        config["TEST"] = {"CHARSET": "utf8mb4", "COLLATION": "utf8mb4_bin"}

    def check(self, connection: BaseDatabaseWrapper) -> list[CheckMessage]:
        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT VERSION(), @@character_set_database, @@character_set_connection"
                )
                version, of_database, of_connection = cursor.fetchone()
        except DatabaseFailure as error:
            return [
                Error(
                    f"The database does not answer: {error}",
                    hint="Check that it runs, and host, port, user and password in DATABASE_URL.",
                    id="hookstation.E009",
                )
            ]
        return self.check_version(version) + self.check_charset(of_database, of_connection)

    def check_version(self, text: str) -> list[CheckMessage]:
        """Whether the version that the server reports is new enough, and tested."""
        is_mariadb = "MariaDB" in text
        # Some proxies announce MariaDB 10.6.12 as 5.5.5-10.6.12-MariaDB.
        numbers = text.removeprefix("5.5.5-").split("-")[0].split(".")
        version = tuple(int(number) for number in numbers if number.isdecimal())
        name = "MariaDB" if is_mariadb else "MySQL"
        # TiDB reports the version of the MySQL protocol it implements; its features are newer.
        if version < (self.MIN_MARIADB if is_mariadb else self.MIN_MYSQL) and "TiDB" not in text:
            return [
                Error(
                    f"{name} {text} does not support FOR UPDATE SKIP LOCKED: workers would block "
                    "each other.",
                    hint="Use MySQL 8.0.17, MariaDB 10.6, or newer.",
                    id="hookstation.E010",
                )
            ]
        oldest, newest = self.TESTED_MARIADB if is_mariadb else self.TESTED_MYSQL
        if oldest <= version[:2] <= newest:
            return []
        span = " to ".join(".".join(map(str, one)) for one in dict.fromkeys((oldest, newest)))
        return [
            Warning(
                f"{name} {text} is {'older' if version < oldest else 'newer'} than what was tested "
                f"({span}).",
                hint="It probably works. Try it with your load before you rely on it.",
                id="hookstation.W006",
            )
        ]

    def check_charset(self, of_database: str, of_connection: str) -> list[CheckMessage]:
        """Whether both are the one that holds every character."""
        if of_database == of_connection == "utf8mb4":
            return []
        return [
            Error(
                f"Text would be corrupted: the database's character set is {of_database}, the "
                f"connection's is {of_connection}; both must be utf8mb4.",
                hint="Before the first migration run ALTER DATABASE <name> CHARACTER SET utf8mb4 "
                "COLLATE utf8mb4_bin; and set no other charset in DATABASE_URL.",
                id="hookstation.E011",
            )
        ]

    def durability(self) -> tuple[str, str] | None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@innodb_flush_log_at_trx_commit, @@sync_binlog, @@log_bin")
            flushes, syncs, has_log = cursor.fetchone()
        if flushes == 1 and (syncs == 1 or not has_log):
            return None
        return (
            f"innodb_flush_log_at_trx_commit is {flushes} and sync_binlog is {syncs}: a message "
            "that was accepted may be lost when the machine loses power.",
            "SET PERSIST innodb_flush_log_at_trx_commit = 1; SET PERSIST sync_binlog = 1; "
            "(MariaDB: in its configuration file).",
        )

    def statement_bytes(self) -> int | None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            (most,) = cursor.fetchone()
        return int(most)

    def place(self, config: Mapping[str, Any]) -> str:
        host, port = config.get("HOST") or "127.0.0.1", config.get("PORT") or 3306
        return f"{host}:{port}/{config['NAME']}"

    def hint(self, index: str) -> str:
        """MariaDB limits its estimates to half of a table, so it may sort instead."""
        return f" FORCE INDEX ({index})"

    # `union`: these run one after another. As subqueries in FROM, the server would first store the
    # rows of each: a third to three quarters more work.

    def upsert(self, key: str, update: str) -> str:
        return f"ON DUPLICATE KEY UPDATE {update}"

    def new(self, column: str) -> str:
        """MySQL deprecates this, but MariaDB lacks what replaces it."""
        return f"VALUES({column})"

    def span(self, column: str, width_s: int) -> str:
        """Its division by ``/`` has a fraction."""
        return f"TIMESTAMPDIFF(SECOND, '1970-01-01', {column}) DIV {width_s:d}"

    def instant(self, value: datetime) -> datetime:
        return value.replace(tzinfo=UTC)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """The usual isolation is READ COMMITTED (`configure`)."""
        with connection.cursor() as cursor:
            # For the next transaction only.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with transaction.atomic():
            yield

    def collation(self, connection: BaseDatabaseWrapper) -> str | None:
        """Default collations ignore case and trailing blanks, ``utf8mb4_bin`` the latter."""
        is_mariadb = getattr(connection, "mysql_is_mariadb", False)
        return "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"

    def answer_limit(self, seconds: int) -> dict[str, Any]:
        return {"read_timeout": seconds}

    def is_undone(self, error: OperationalError) -> bool:
        return bool(error.args) and error.args[0] in self.UNDONE

    def is_away(self, error: Exception) -> bool:
        """The client, which lost the server, has codes from 2000 to 2999; others come from it."""
        if isinstance(error, OperationalError) and error.args and isinstance(error.args[0], int):
            return 2000 <= error.args[0] < 3000
        return super().is_away(error)

    def is_full(self, error: BaseException) -> bool:
        """By the server's code, or by the system's in its text."""
        if not isinstance(error, DatabaseError) or not error.args:
            return False
        code = error.args[0]
        is_quoted = code in self.QUOTING and self.NO_SPACE.search(str(error))
        return code in self.FULL or bool(is_quoted)

    def folder(self) -> Path | None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@hostname, @@datadir")
            host, folder = cursor.fetchone()
        # A server in a container has another host name, and its path means another folder.
        is_here = host == socket.gethostname() and Path(folder).is_dir()
        return Path(folder) if is_here else None

    def reusable_bytes(self) -> int:
        """Of the bodies' table alone: in a shared tablespace each table reports the same space."""
        with connection.cursor() as cursor:
            if not getattr(connection, "mysql_is_mariadb", False):
                # MySQL would report what was free up to a day ago.
                cursor.execute("SET SESSION information_schema_stats_expiry = 0")
            cursor.execute(
                "SELECT data_free FROM information_schema.tables "
                "WHERE table_schema = DATABASE() AND table_name = 'channels_app_messagebody'"
            )
            row = cursor.fetchone()
        return int(row[0] or 0) if row else 0

    def checkpoint(self) -> None:
        """The server does that."""


DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (SQLite(), MySQL())}
BY_SCHEME = {scheme: dialect for dialect in DIALECTS.values() for scheme in dialect.schemes}


def of(connection: BaseDatabaseWrapper) -> Dialect:
    """The dialect of this connection's database."""
    return DIALECTS[connection.vendor]
