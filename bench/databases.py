"""Provide databases for the time of a measurement: a private MariaDB server, or a file."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from bench import cpu
from bench.adapters import BenchError

with suppress(ImportError):  # without the driver only SQLite can be measured
    import MySQLdb

ROOT = Path(__file__).resolve().parents[1]
Kind = Literal["mariadb", "sqlite"]
KINDS: tuple[Kind, ...] = ("mariadb", "sqlite")
PRINT_URL = 'echo "$DATABASE_URL"; cat'
DURABILITY = ("innodb_flush_log_at_trx_commit", "innodb_doublewrite", "log_bin", "sync_binlog")
SIZES = ("innodb_buffer_pool_size", "innodb_log_file_size")


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
        at = urlsplit(self.url)
        with connect(at.hostname, at.port, at.username, at.password) as cursor:
            cursor.execute("SELECT VERSION()")
            ((version,),) = cursor.fetchall()
            cursor.execute("SHOW GLOBAL VARIABLES")
            variables = dict(cursor.fetchall())
        settings = [f"{name} = {variables[name]}" for name in DURABILITY]
        settings += [f"{name} = {int(variables[name]) >> 20} MiB" for name in SIZES]
        return f"MariaDB {version}; {', '.join(settings)}"


@contextmanager
def connect(
    host: str | None, port: int | None, user: str | None, password: str | None
) -> Iterator[Any]:
    """Return a cursor on the server."""
    connection = MySQLdb.connect(host=host, port=port, user=user, password=password)
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
    # The server stops when `cat` ends: when this process closes the pipe or dies.
    with subprocess.Popen(
        [sys.executable, ROOT / "tools/mariadb", *_options(), "sh", "-c", PRINT_URL],
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
            below = cpu.descendants(keeper.pid)
            yield Database(kind, url, [pid for pid in below if "mariadbd" in cpu.program(pid)])
        finally:
            keeper.communicate()


def _options() -> Sequence[str]:
    """Return options of a server that shares the machine with the broker, besides its defaults.

    They give it a quarter of the memory, and a redo log that does not fill up within a minute.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"--innodb-buffer-pool-size={memory // 4}", "--innodb-log-file-size=1G"
