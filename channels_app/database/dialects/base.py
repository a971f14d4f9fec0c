"""Declare what the broker must know of a database."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.checks import CheckMessage
from django.db import InterfaceError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper


class Dialect(ABC):
    """What the broker must know of a database. The defaults are what most databases do."""

    name: str
    """Django's name of its driver's family."""
    schemes: tuple[str, ...]
    """How a DATABASE_URL of it may begin."""
    address: str
    """What such a URL looks like, for operators."""
    version_query: str
    """Returns the version for operators."""
    is_embedded = False
    """Whether the broker's processes write a file themselves: one at a time, without a server."""
    takes_packets = False
    """Whether the server runs several statements of one packet (`broker_site.server.mysql`)."""
    has_loose_scan = False
    """Whether it jumps in an index from group to group, and reads one entry of each."""
    statement_setting = ""
    """The server's setting that limits the length of a statement (`statement_bytes`)."""
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

    def lost(self, detail: str) -> OperationalError:
        """The error for a server that stopped answering."""
        return OperationalError(detail)

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
