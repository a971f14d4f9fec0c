"""Run the real broker in processes of its own, on its own database, and call it over HTTP."""

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import requests
from django.conf import settings
from django.db import connection

from tests.support import ports
from tests.support.receiver import Receiver

START_S = 180.0
"""Long enough for a busy machine; only a fault takes so long."""
LEAST_PATIENCE_S = 300.0
"""Other work may take nine tenths of the machine, and a shorter wait would report that as a
fault."""
ANSWER_TIMEOUT_S = 60.0
"""Seconds for one response: on a busy disk a commit may take many seconds."""
ROOT = Path(settings.BASE_DIR)
SECRET_KEY = "e2e-" + "0123456789" * 6


class Broker:
    """A running installation and a key with all scopes."""

    def __init__(self, folder: Path, database_url: str, **settings_: str) -> None:
        self.folder = folder
        self.port = ports.claim()
        self.base = f"http://127.0.0.1:{self.port}/api/v1"
        self.environment = {
            "PATH": os.environ["PATH"],
            "SECRET_KEY": SECRET_KEY,
            "DATABASE_URL": database_url,
            "HOOKSTATION_DATA_DIR": str(folder),
            "HOOKSTATION_ALLOWED_TARGETS": "127.0.0.0/8",
            "HOOKSTATION_PUBLIC_URL": f"http://127.0.0.1:{self.port}",
            # A slow receiver on a busy machine must not cost an attempt.
            "HOOKSTATION_CONNECT_TIMEOUT_MS": "15000",
            # Without the file no failpoint kills; killed processes are restarted at once.
            "HOOKSTATION_FAILPOINT": str(folder / "failpoint"),
            "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": str(ROOT / "tests/support/hidden"),
            **settings_,
        }
        self.program = [sys.executable, "manage.py"]
        self.workplace = ROOT
        """Working directory of commands."""
        self.process: subprocess.Popen[bytes] | None = None
        self.http = requests.Session()
        self.http.trust_env = False

    def manage(self, *arguments: str) -> str:
        """Return the standard output of a management command, which must succeed."""
        done = subprocess.run(
            [*self.program, *arguments],
            cwd=self.workplace,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"manage.py {arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def create_key(self) -> str:
        """Create a key with all scopes."""
        return self.manage("create_api_key", "e2e", "--scope", "admin", "--all-channels").strip()

    @property
    def key(self) -> str:
        """The key that it is called with."""
        return str(self.http.headers["Authorization"]).removeprefix("Bearer ")

    def use(self, key: str) -> None:
        """Call with this key."""
        self.http.headers["Authorization"] = f"Bearer {key}"

    def start(self, *arguments: str) -> None:
        """Start `manage.py broker` and wait until it is ready to deliver."""
        log = (self.folder / "broker.log").open("ab")
        self.process = subprocess.Popen(
            [*self.program, "broker", "--bind", f"127.0.0.1:{self.port}", *arguments],
            cwd=self.workplace,
            env=self.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        wait_until(self.is_ready, START_S, "the broker is not ready", self.log)

    def is_ready(self) -> bool:
        """Whether /readyz succeeds."""
        try:
            return requests.get(f"http://127.0.0.1:{self.port}/readyz", timeout=2).ok
        except requests.RequestException:
            return False

    def stop(self, number: int = signal.SIGTERM, seconds: float = 120.0) -> int:
        """Stop it with a signal; returns the exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def end(self) -> None:
        """Stop it if it runs, and close the connection to it."""
        self.http.close()
        if self.process is not None and self.process.poll() is None:
            self.stop()

    def log(self) -> str:
        """Return what the broker has logged so far."""
        return (self.folder / "broker.log").read_text(errors="replace")

    def call(self, method: str, path: str, expect: int, **options: Any) -> Any:
        """Send one API request, whose status must be ``expect``; returns the response's JSON."""
        answer = self.http.request(
            method, f"{self.base}{path}", timeout=ANSWER_TIMEOUT_S, **options
        )
        assert answer.status_code == expect, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def workers(self) -> list[int]:
        """Return the process ids below the worker cluster's main process."""
        assert self.process is not None
        return [pid for pid in descendants(self.process.pid) if "qcluster" in title(pid)]


@contextmanager
def running(folder: Path, **settings_: str) -> Iterator[Broker]:
    """Run a broker on a fresh database of the kind that this test run uses."""
    with database_with_key(folder) as (url, key):
        broker = Broker(folder, url, **settings_)
        broker.use(key)
        try:
            broker.start()
            yield broker
        finally:
            broker.end()


@contextmanager
def fresh_database(folder: Path) -> Iterator[str]:
    """Create a database with tables: a file, or one on the server that this test run uses."""
    with _copied(folder, _template(with_key=False)) as url:
        yield url


@contextmanager
def database_with_key(folder: Path) -> Iterator[tuple[str, str]]:
    """Create a database with tables and a key with all scopes, for brokers with `SECRET_KEY`."""
    template = _template(with_key=True)
    with _copied(folder, template) as url:
        yield url, template.key


@dataclass(frozen=True, slots=True)
class _Template:
    """A database to copy: migrations and commands take longer than a broker's start."""

    place: str
    """The path of a file, or the name of a database on the test run's own server."""
    key: str = ""


@cache
def _template(*, with_key: bool) -> _Template:
    folder = Path(tempfile.mkdtemp(prefix="hookstation-e2e-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    base = _template(with_key=False) if with_key else None
    if connection.vendor != "mysql":
        place = str(folder / "template.sqlite3")
        url = f"sqlite:///{place}"
        if base:
            shutil.copyfile(base.place, place)
    else:
        place = f"e2e_{os.getpid()}_template_{with_key:d}"
        url = _address(place)
        _create(place, copied_from=base.place if base else "")
        atexit.register(_on_server, "mysql", f"DROP DATABASE {place}")
    broker = Broker(folder, url)
    if base:
        return _Template(place, broker.create_key())
    broker.manage("migrate", "--verbosity", "0")
    return _Template(place)


@contextmanager
def _copied(folder: Path, template: _Template) -> Iterator[str]:
    if connection.vendor != "mysql":
        path = folder / "broker.sqlite3"
        shutil.copyfile(template.place, path)
        yield f"sqlite:///{path}"
        return
    name = f"e2e_{os.getpid()}_{time.time_ns()}"
    _create(name, copied_from=template.place)
    try:
        yield _address(name)
    finally:
        _on_server("mysql", f"DROP DATABASE {name}")


@contextmanager
def empty_database(folder: Path) -> Iterator[str]:
    """Create a database without tables, for an application beside the broker."""
    if connection.vendor != "mysql":
        yield f"sqlite:///{folder / 'application.sqlite3'}"
        return
    name = f"e2e_{os.getpid()}_{time.time_ns()}"
    _create(name)
    try:
        yield _address(name)
    finally:
        _on_server("mysql", f"DROP DATABASE {name}")


def _address(name: str) -> str:
    at = connection.settings_dict
    return f"mysql://{at['USER']}:{at['PASSWORD']}@{at['HOST']}:{at['PORT']}/{name}"


def _create(name: str, copied_from: str = "") -> None:
    """Create an empty database, or a copy of another with its rows."""
    _on_server("mysql", f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    if not copied_from:
        return
    tables = [str(row[0]) for row in _on_server(copied_from, "SHOW TABLES")]
    # Tables are created by name, so they may refer to later ones.
    statements = ["SET FOREIGN_KEY_CHECKS = 0"]
    for table in tables:
        ((_, definition),) = _on_server(copied_from, f"SHOW CREATE TABLE {table}")
        statements.append(str(definition))
        statements.append(f"INSERT INTO {table} SELECT * FROM {copied_from}.{table}")
    _on_server(name, *statements)


def wait_until(
    done: Callable[[], bool],
    seconds: float,
    otherwise: str,
    more: Callable[[], str] = lambda: "",
) -> None:
    """Poll until true; fails with a message after ``seconds``, at least five minutes."""
    seconds = max(seconds, LEAST_PATIENCE_S)
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{otherwise} after {seconds} s\n{more()[-3000:]}"
        time.sleep(0.1)


def receivers_waiting(broker: Broker) -> int:
    """Return how many receivers wait in the broker's processes."""
    found = re.search(r"^hookstation_receivers_waiting ([\d.]+)", _metrics(broker), re.M)
    return int(float(found[1])) if found else 0


def receivers_resumed(broker: Broker) -> Tally[str]:
    """Count the receivers that got messages, by what ended their wait."""
    pattern = r'^hookstation_receivers_resumed_total\{cause="(\w+)"\} ([\d.]+)'
    found = re.findall(pattern, _metrics(broker), re.M)
    return Tally({cause: int(float(count)) for cause, count in found})


def _metrics(broker: Broker) -> str:
    root = broker.base.removesuffix("/api/v1")
    return requests.get(f"{root}/metrics", timeout=ANSWER_TIMEOUT_S).text


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process, children first."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    below = [int(child) for child in children]
    return below + [deeper for child in below for deeper in descendants(child)]


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def title(pid: int) -> str:
    """Return a process's command line; empty when it has ended or is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def heard_ids(receiver: Receiver, path: str) -> list[str]:
    """Return the ``webhook-id`` of each request on a path, in order."""
    return [request.header("webhook-id") or "" for request in receiver.requests(path)]


def _on_server(database: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements; returns the rows of the last one."""
    asked = connection.get_connection_params() | {"database": database}
    there = connection.get_new_connection(asked)
    try:
        with closing(there.cursor()) as cursor:
            for statement in statements:
                cursor.execute(statement)
            found = list(cursor.fetchall())
        there.commit()
    finally:
        there.close()
    return found
