"""Provide databases for the time of a measurement: a private MariaDB server, or a file."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from bench import machine
from bench.adapters import BenchError

with suppress(ImportError):  # without the driver only SQLite can be measured
    import MySQLdb

ROOT = Path(__file__).resolve().parents[1]
Kind = Literal["mariadb", "sqlite"]
KINDS: tuple[Kind, ...] = ("mariadb", "sqlite")
PRINT_URL = 'echo "$DATABASE_URL"; cat'
DURABILITY = ("innodb_flush_log_at_trx_commit", "innodb_doublewrite", "log_bin", "sync_binlog")
SIZES = ("innodb_buffer_pool_size", "innodb_log_file_size")
BUFFER_POOL_SHARE = 1 / 4
"""Share of the machine's memory, which the server has in common with the broker."""
REDO_LOG = "1G"
"""Large enough that it does not fill up within a minute."""


@dataclass(frozen=True, slots=True)
class Database:
    """An empty database and its server processes, if any."""

    kind: Kind
    url: str
    pids: Sequence[int] = ()
    """Empty for SQLite, which runs in the broker's processes."""

    def describe(self) -> str:
        """Return the version, and the durability of commits."""
        if self.kind == "sqlite":
            return f"SQLite {sqlite3.sqlite_version}, as the broker sets it up"
        with self.cursor() as cursor:
            cursor.execute("SHOW GLOBAL VARIABLES")
            variables = dict(cursor.fetchall())
        settings = [f"{name} = {variables[name]}" for name in DURABILITY]
        settings += [f"{name} = {int(variables[name]) >> 20} MiB" for name in SIZES]
        return f"MariaDB {variables['version']}; {', '.join(settings)}"

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """Return a cursor on the database, which must be a server's. Nothing is committed."""
        at = urlsplit(self.url)
        connection = MySQLdb.connect(
            host=at.hostname,
            port=at.port,
            user=at.username,
            password=at.password,
            database=at.path.removeprefix("/"),
        )
        try:
            yield connection.cursor()
        finally:
            connection.close()


@contextmanager
def fresh(kind: Kind, folder: Path) -> Iterator[Database]:
    """Provide an empty database of this kind; a server is started for it and stopped afterwards.

    Raises BenchError.
    """
    if kind == "sqlite":
        yield Database(kind, f"sqlite:///{folder / 'bench.sqlite3'}")
        return
    options = [
        f"--innodb-buffer-pool-size={int(machine.memory_bytes() * BUFFER_POOL_SHARE)}",
        f"--innodb-log-file-size={REDO_LOG}",
    ]
    # The server stops when `cat` ends: when this process closes the pipe or dies.
    with subprocess.Popen(
        [sys.executable, ROOT / "tools/mariadb", *options, "sh", "-c", PRINT_URL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C must not stop it before the broker
    ) as keeper:
        assert keeper.stdout is not None
        try:
            url = keeper.stdout.readline().strip()
            if not url:
                raise BenchError("MariaDB did not start.")
            below = machine.descendants(keeper.pid)
            yield Database(kind, url, [pid for pid in below if "mariadbd" in machine.program(pid)])
        finally:
            keeper.communicate()
