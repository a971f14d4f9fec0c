"""A private MariaDB that can be stopped, killed, frozen and restarted on the same port."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from tests.support.broker import ROOT

with suppress(ImportError):  # without the driver these tests are skipped
    import MySQLdb

PR_SET_PDEATHSIG = 1
OPERATOR = "hookstation"
BROKER = "broker"
"""An account without administrator rights: ``read_only`` applies to it, and it may not use the
connection that a full server reserves for administrators."""
ACCOUNTS = f"""
CREATE USER IF NOT EXISTS {OPERATOR}@'127.0.0.1' IDENTIFIED BY '{OPERATOR}';
GRANT ALL ON *.* TO {OPERATOR}@'127.0.0.1';
CREATE USER IF NOT EXISTS {BROKER}@'127.0.0.1' IDENTIFIED BY '{BROKER}';
GRANT ALL ON `{BROKER}%`.* TO {BROKER}@'127.0.0.1';
"""


def _tool() -> Any:
    """Load tools/mariadb, which creates and starts servers."""
    loader = SourceFileLoader("tools_mariadb", str(ROOT / "tools/mariadb"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


tool = _tool()


class Server:
    """A server with its own folder and port, and the faults that can happen to it."""

    def __init__(self, folder: Path) -> None:
        self.port: int = tool.free_port()
        self._log = folder / "log"
        programs = tool.program("mariadb-install-db"), tool.program("mariadbd")
        install, self._serve = tool.commands(*programs, folder, self.port)
        (folder / "init.sql").write_text(ACCOUNTS)
        with self._log.open("ab") as log:
            subprocess.run(["/bin/sh", "-c", install], stdout=log, stderr=log, check=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the server; wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {self._serve}"],
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )
        tool.wait_for(self.port, self._log)

    def end(self, number: int = signal.SIGTERM) -> None:
        """End the server: orderly, or at once with SIGKILL."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the server inside the block, as an administrator does for a restart."""
        yield from self._away(signal.SIGTERM)

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Kill the server inside the block; later it recovers committed data from its log."""
        yield from self._away(signal.SIGKILL)

    def _away(self, number: int) -> Iterator[None]:
        self.end(number)
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the server inside the block: it accepts connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Make it read-only inside the block, as a replica or a primary before a switchover is."""
        self.run("SET GLOBAL read_only = 1")
        try:
            yield
        finally:
            self.run("SET GLOBAL read_only = 0")

    @contextmanager
    def crowded(self) -> Iterator[None]:
        """Occupy all connections inside the block, after cutting the broker's."""
        first, *others = [self.connect() for _ in range(12)]
        _execute(first, "SET GLOBAL max_connections = 10")
        # A connection that is being opened has no user yet, so the first KILL misses it.
        quiet = 0
        while quiet < 3:
            _execute(first, f"KILL USER {BROKER}@'127.0.0.1'")
            time.sleep(0.1)
            quiet = 0 if BROKER in _users(first) else quiet + 1
        try:
            yield
        finally:
            _execute(first, "SET GLOBAL max_connections = 300")
            for other in (first, *others):
                other.close()

    def connections(self) -> int:
        """How many connections the broker holds."""
        with closing(self.connect()) as connection:
            return _users(connection).count(BROKER)

    def database(self, name: str) -> str:
        """Create a database; return its URL for the broker."""
        self.run(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        return f"mysql://{BROKER}:{BROKER}@127.0.0.1:{self.port}/{name}"

    def connect(self) -> Any:
        """Open a connection as an administrator."""
        return MySQLdb.connect(
            host="127.0.0.1", port=self.port, user=OPERATOR, password=OPERATOR, autocommit=True
        )

    def run(self, statement: str) -> Sequence[tuple[Any, ...]]:
        """Run a statement as an administrator; return its rows."""
        with closing(self.connect()) as connection:
            return _execute(connection, statement)


def _execute(connection: Any, statement: str) -> Sequence[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()  # type: ignore[no-any-return]  # MySQLdb has no types


def _users(connection: Any) -> list[str]:
    """The user of each connection that the server has."""
    rows = _execute(connection, "SELECT user FROM information_schema.processlist")
    return [str(row[0]) for row in rows]


def _die_with_parent() -> None:
    """Get SIGKILL when the parent dies, and ignore Ctrl-C in the terminal."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
