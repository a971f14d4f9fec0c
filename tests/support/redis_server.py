"""Run a Redis server, for programs as they were before they used Hookstation."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.support import ports
from tests.support.broker import wait_until

PATIENCE_S = 120.0


@contextmanager
def running(folder: Path) -> Iterator[int]:
    """Run Redis inside the block, on the port that is returned; skips the test without it.

    It saves nothing to disk.
    """
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("there is no redis-server (Debian: redis-server)")
    port = ports.claim()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen([server, *options], stdout=log, stderr=log)
    try:
        with redis.Redis(port=port) as client:
            wait_until(lambda: _answers(client), PATIENCE_S, "Redis does not answer")
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
