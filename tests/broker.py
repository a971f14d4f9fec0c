"""The real broker in processes of its own, on a database of its own, spoken to over HTTP."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from django.conf import settings
from django.db import connection

from tests.receiver import Receiver

START_S = 180.0
"""On a machine that has much else to do; nobody waits so long unless something is wrong."""
ANSWER_S = 60.0
"""For one answer: a disk that others keep busy may hold a commit for many seconds."""
ROOT = Path(settings.BASE_DIR)


class Broker:
    """A running installation and a key that may do everything."""

    def __init__(self, folder: Path, database_url: str, **settings_: str) -> None:
        self.folder = folder
        self.port = _free_port()
        self.base = f"http://127.0.0.1:{self.port}/api/v1"
        self.environment = {
            "PATH": os.environ["PATH"],
            "SECRET_KEY": "e2e-" + "0123456789" * 6,
            "DATABASE_URL": database_url,
            "HOOKSTATION_DATA_DIR": str(folder),
            "HOOKSTATION_ALLOWED_TARGETS": "127.0.0.0/8",
            "HOOKSTATION_PUBLIC_URL": f"http://127.0.0.1:{self.port}",
            "PYTHONWARNINGS": "ignore",
            **settings_,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.http = requests.Session()
        self.http.trust_env = False

    def manage(self, *arguments: str) -> str:
        """Standard output of a management command that must succeed."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"manage.py {arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def set_up(self) -> None:
        """Tables and the key."""
        self.manage("migrate", "--verbosity", "0")
        key = self.manage("issue_key", "e2e", "--scope", "admin").strip()
        self.http.headers["Authorization"] = f"Bearer {key}"

    def start(self, *arguments: str) -> None:
        """Start `manage.py broker` and wait until it is ready to deliver."""
        log = (self.folder / "broker.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "broker", "--bind", f"127.0.0.1:{self.port}", *arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        wait_until(self.is_ready, START_S, "the broker is not ready", self.log)

    def is_ready(self) -> bool:
        """Whether /readyz says so."""
        try:
            return requests.get(f"http://127.0.0.1:{self.port}/readyz", timeout=2).ok
        except requests.RequestException:
            return False

    def stop(self, number: int = signal.SIGTERM, seconds: float = 30.0) -> int:
        """End it with a signal; returns the exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def log(self) -> str:
        """What the broker wrote so far."""
        return (self.folder / "broker.log").read_text(errors="replace")

    def call(self, method: str, path: str, expect: int, **options: Any) -> Any:
        """One API request whose status must be ``expect``; the answer's JSON."""
        answer = self.http.request(method, f"{self.base}{path}", timeout=ANSWER_S, **options)
        assert answer.status_code == expect, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def workers(self) -> list[int]:
        """Process ids of everything below the worker cluster's main process."""
        assert self.process is not None
        return [pid for pid in descendants(self.process.pid) if b"qcluster" in _title(pid)]


@contextmanager
def running(folder: Path, **settings_: str) -> Iterator[Broker]:
    """A broker on a fresh database of the kind this test run uses."""
    with fresh_database(folder) as url:
        broker = Broker(folder, url, **settings_)
        broker.set_up()
        try:
            broker.start()
            yield broker
        finally:
            broker.http.close()
            if broker.process is not None and broker.process.poll() is None:
                broker.stop()


@contextmanager
def fresh_database(folder: Path) -> Iterator[str]:
    """A new, empty database: a file, or one on the server that this test run uses."""
    if connection.vendor != "mysql":
        yield f"sqlite:///{folder / 'broker.sqlite3'}"
        return
    at = connection.settings_dict
    name = f"e2e_{os.getpid()}_{time.time_ns()}"
    _server(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    try:
        yield f"mysql://{at['USER']}:{at['PASSWORD']}@{at['HOST']}:{at['PORT']}/{name}"
    finally:
        _server(f"DROP DATABASE {name}")


def wait_until(
    done: Callable[[], bool],
    seconds: float,
    otherwise: str,
    more: Callable[[], str] = lambda: "",
) -> None:
    """Look again and again; fails with a sentence after ``seconds``."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{otherwise} after {seconds} s\n{more()[-3000:]}"
        time.sleep(0.1)


def descendants(pid: int) -> list[int]:
    """Every process below one, children first."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    below = [int(child) for child in children]
    return below + [deeper for child in below for deeper in descendants(child)]


def heard_ids(receiver: Receiver, path: str) -> list[str]:
    """The ``webhook-id`` of each request on a path, in order."""
    return [request.header("webhook-id") or "" for request in receiver.requests(path)]


def _title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _server(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
