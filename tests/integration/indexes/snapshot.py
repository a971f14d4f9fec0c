"""Keeps a copy of a filled database, so that the next test need not create its rows again."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from django.db import connection, transaction

APPS = ("channels_app_", "delivery_")


class Snapshot:
    """A copy of our own tables: in a file with SQLite, in a separate database with MariaDB."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "snapshot.sqlite3"
        self._tables: list[str] = []

    @property
    def _place(self) -> str:
        is_server = connection.vendor == "mysql"
        return f"{connection.settings_dict['NAME']}_snapshot" if is_server else "snapshot"

    def save(self) -> None:
        """Copy every table that has rows."""
        names = connection.introspection.table_names()
        ours = [name for name in names if name.startswith(APPS)]
        self._tables = [name for name in ours if self._run(f"SELECT 1 FROM {name} LIMIT 1")]
        if connection.vendor == "mysql":
            self._run(f"CREATE DATABASE {self._place}")
        with self._attached():
            for name in self._tables:
                self._run(f"CREATE TABLE {self._place}.{name} AS SELECT * FROM {name}")

    def restore(self) -> None:
        """Replace the rows of the tables with those of the copy."""
        with (
            self._attached(),
            connection.constraint_checks_disabled(),
            transaction.atomic(),
        ):
            for name in self._tables:
                self._run(f"DELETE FROM {name}")
                self._run(f"INSERT INTO {name} SELECT * FROM {self._place}.{name}")

    def drop(self) -> None:
        """Remove the copy from the server; the file is deleted with its folder."""
        if connection.vendor == "mysql":
            self._run(f"DROP DATABASE IF EXISTS {self._place}")

    @contextmanager
    def _attached(self) -> Iterator[None]:
        """Attach the SQLite file, without which its tables cannot be reached."""
        if connection.vendor == "mysql":
            yield
            return
        with connection.cursor() as cursor:
            cursor.execute(f"ATTACH DATABASE %s AS {self._place}", [str(self._file)])
        try:
            yield
        finally:
            self._run(f"DETACH DATABASE {self._place}")

    def _run(self, statement: str) -> Sequence[object]:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []
