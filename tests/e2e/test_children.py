"""The broker command with its real web server: addresses, stopping at any moment, no orphans."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from channels_app.database.dialects import DIALECTS
from delivery.cluster import children
from delivery.cluster.children import Bind, Unusable
from tests.e2e.test_supervisor import ROOT, tree, wait_until
from tests.support import ports

Start = Callable[[], subprocess.Popen[str]]


@pytest.mark.parametrize(
    ("text", "host", "port", "url"),
    [
        ("127.0.0.1:8001", "127.0.0.1", 8001, "http://127.0.0.1:8001"),
        ("8001", "127.0.0.1", 8001, "http://127.0.0.1:8001"),
        ("127.0.0.2", "127.0.0.2", 8000, "http://127.0.0.2:8000"),
        ("[::1]:8001", "::1", 8001, "http://[::1]:8001"),
        ("[::1]", "::1", 8000, "http://[::1]:8000"),
    ],
)
def test_bind_reads_host_and_port(text: str, host: str, port: int, url: str) -> None:
    bind = Bind.parse(text)

    assert (bind.host, bind.port, bind.url) == (host, port, url)


@pytest.mark.parametrize("text", ["127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:web", "a b:8000"])
def test_bind_refuses_invalid_addresses(text: str) -> None:
    with pytest.raises(Unusable):
        Bind.parse(text)


def test_bind_reports_an_address_of_another_machine() -> None:
    with pytest.raises(Unusable, match=re.escape("Cannot listen on 192.0.2.1:8000")):
        Bind("192.0.2.1", 8000).check_free()


@pytest.mark.parametrize(
    ("database", "cores", "workers", "threads"),
    [
        ("mysql", 2, 2, 32),
        ("mysql", 4, 2, 32),
        ("mysql", 16, 8, 8),
        ("mysql", 64, 32, 8),
        ("sqlite", 2, 1, 32),
        ("sqlite", 64, 1, 32),
    ],
)
def test_web_processes_and_threads_default_by_cores_and_database(
    database: str, cores: int, workers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "dialect", DIALECTS[database])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(cores))

    assert children.web_workers() == workers
    assert children.web_threads() == threads


@pytest.fixture
def port() -> int:
    return ports.claim()


@pytest.fixture
def start(tmp_path: Path, port: int) -> Iterator[Start]:
    """Start ``manage.py broker --role web`` on a free port."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        options = ["--role", "web", "--bind", f"127.0.0.1:{port}"]
        popen = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "broker", *options],
            env={
                **os.environ,
                "HOOKSTATION_DATA_DIR": str(tmp_path),
                "HOOKSTATION_WEB_WORKERS": "2",
                "HOOKSTATION_SHUTDOWN_GRACE_S": "60",
                "SECRET_KEY": "of no importance to anybody, but rather long: 0123456789",
            },
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        started.append(popen)
        return popen

    yield start
    for popen in started:
        popen.terminate()
        popen.communicate(timeout=60)


@pytest.mark.e2e
def test_a_busy_port_ends_the_broker_with_an_error_message(start: Start, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        broker = start()
        _, said = broker.communicate(timeout=60)

    assert broker.returncode == 1
    assert said.endswith(
        f"Port {port} on 127.0.0.1 is already in use. Stop what listens there, or choose "
        f"another: --bind 127.0.0.1:{port + 1}\n"
    )


@pytest.mark.e2e
@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.4])
def test_ctrl_c_while_the_web_server_loads_does_not_wait_for_the_grace(
    start: Start, after_s: float
) -> None:
    broker = start()
    # supervisor, reaper, prober, granian and its two workers, which now load the application
    wait_until(lambda: len(tree(broker.pid)) == 6)
    time.sleep(after_s)

    broker.send_signal(signal.SIGINT)

    broker.communicate(timeout=60)
    assert broker.returncode == 0
