"""Run a private PostgreSQL for applications beside the broker, which itself does not support it."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import ports

START_S = 60.0
USER = "postgres"
"""The server refuses to run as root; Debian's package creates this user."""
INSTALLED = Path("/usr/lib/postgresql")
"""Debian's location, which is not in PATH."""


@contextmanager
def server() -> Iterator[str]:
    """Return the URL of an empty database on a new server. Skips the test if there is no server."""
    pytest.importorskip("psycopg", reason="psycopg, PostgreSQL's driver, is missing")
    initdb, postgres = _program("initdb"), _program("postgres")
    folder = Path(tempfile.mkdtemp(prefix="hookstation-postgresql-"))
    # It ends with this process in any case.
    runner = ["setpriv", "--pdeathsig", "INT"]
    if os.geteuid() == 0:
        shutil.chown(folder, USER)
        runner += ["--reuid", USER, "--regid", USER, "--clear-groups"]
    data, port = folder / "data", ports.claim()
    making = [initdb, "-D", str(data), "-U", "shop", "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run([*runner, *making], check=True, capture_output=True, cwd=folder)
    serving = [
        postgres,
        "-D",
        str(data),
        "-h",
        "127.0.0.1",
        "-p",
        f"{port}",
        "-k",
        str(folder),
        "-F",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*runner, *serving], stdout=log, stderr=log, cwd=folder)
    try:
        _wait_for(process, port, folder / "log")
        yield f"postgres://shop@127.0.0.1:{port}/postgres"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(START_S)
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str:
    folders = [str(path) for path in sorted(INSTALLED.glob("*/bin"), reverse=True)]
    path = shutil.which(name, path=os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)]))
    if path is None:
        pytest.skip(f"{name} is missing: tools/apt postgresql")
    return path


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_S
    while b"ready to accept connections" not in log.read_bytes():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    socket.create_connection(("127.0.0.1", port), timeout=START_S).close()
