"""Say what is different on SQLite."""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.checks import CheckMessage, Warning
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper

from channels_app.database.dialects.base import Dialect


class SQLite(Dialect):
    """A file with one writer at a time, whose reads never wait."""

    name = "sqlite"
    schemes = ("sqlite",)
    address = "sqlite:///path"
    version_query = "SELECT sqlite_version()"
    is_embedded = True
    locked = skip_locked = ""
    join_in_order = "CROSS JOIN"
    # Only with this type's name is the key the row id. Every index then ends with it and can sort
    # by it, as in InnoDB.
    key_type = "integer"
    GOOD = (3, 51, 3)
    FILE = "hookstation.sqlite3"

    def url_in(self, folder: Path) -> str:
        """The DATABASE_URL of an installation's own file in this folder."""
        return f"sqlite:///{folder / self.FILE}"

    def delete(self, folder: Path) -> None:
        """Delete that file, and those that SQLite keeps beside it."""
        for path in folder.glob(f"{self.FILE}*"):
            path.unlink()

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
