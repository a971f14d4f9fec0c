"""Say what is different on MySQL and MariaDB."""

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import DatabaseError, OperationalError, connection, transaction
from django.db import Error as DatabaseFailure
from django.db.backends.base.base import BaseDatabaseWrapper

from channels_app.database.dialects.base import Dialect


class MySQL(Dialect):
    """MySQL and MariaDB, with InnoDB's tables."""

    name = "mysql"
    schemes = ("mysql", "mysql2")
    address = "mysql://user:password@host:port/name"
    version_query = "SELECT VERSION()"
    takes_packets = True
    has_loose_scan = True
    statement_setting = "max_allowed_packet"
    clock_query = "SELECT UTC_TIMESTAMP(6)"
    join_in_order = "STRAIGHT_JOIN"

    MIN_MYSQL = (8, 0, 17)
    """The first version with a collation that compares bytes and keeps trailing blanks."""
    MIN_MARIADB = (10, 6)
    TESTED_MYSQL = ((9, 7), (9, 7))
    TESTED_MARIADB = ((10, 11), (11, 8))
    """The oldest and the newest series that `make test-databases` runs on."""
    LOST = 2013
    """The connection was lost during a statement."""
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
        span = " to ".join(".".join(map(str, bound)) for bound in dict.fromkeys((oldest, newest)))
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
            cursor.execute(f"SELECT @@{self.statement_setting}")
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

    def lost(self, detail: str) -> OperationalError:
        return OperationalError(self.LOST, detail)

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
