"""Run Hookstation for the harness through its commands, API and processes, not its internals."""

import itertools
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import requests

from bench import machine
from bench.adapters import BenchError, Consumer, PackBatch, Route, one
from bench.databases import ROOT

START_S = 60.0
STOP_S = 40.0
POLL_S = 0.1
DEPTH = re.compile(r'^hookstation_queue_depth\{state="(\w+)"\} (\S+)$', re.MULTILINE)
OPEN = ("queued", "in_flight", "awaiting_ack")
"""States of unfinished deliveries."""
CONFIG_CACHE_S = 1.2
"""Seconds after which every process knows a new consumer (docs/architecture.md)."""


class Hookstation:
    """`manage.py broker` with default settings on the given database."""

    name = "Hookstation"

    def __init__(self, database_url: str, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ},
            "SECRET_KEY": secrets.token_urlsafe(50),
            "DATABASE_URL": database_url,
            "HOOKSTATION_DATA_DIR": str(folder),
            "HOOKSTATION_ALLOWED_TARGETS": "127.0.0.0/8",
            # No limit, because backlogs are measured.
            "HOOKSTATION_CHANNEL_WAITING_MESSAGES": "0",
            "HOOKSTATION_CHANNEL_WAITING_BYTES": "0",
            "HOOKSTATION_PUBLIC_URL": self.address,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._http = requests.Session()
        self._http.trust_env = False
        self._key = self._admin_key = ""
        self.channel = ""
        self._channels = itertools.count(1)
        self._consumers: list[str] = []

    def manage(self, *arguments: str) -> str:
        """Return the output of a management command. Raises BenchError."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BenchError(f"manage.py {arguments[0]} failed: {_end(done.stderr)}")
        return done.stdout

    def start(self) -> None:
        """Create tables and keys at the first start; return when /readyz succeeds."""
        if not self._key:
            self.manage("migrate", "--verbosity", "0")
            self._admin_key = self.admin_key("bench-admin").strip()
            self._http.headers["Authorization"] = f"Bearer {self._admin_key}"
            self._key = self.manage("create_api_key", "bench", "--all-channels").strip()
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "manage.py", "broker", "--bind", f"127.0.0.1:{self.port}"],
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=log,
                process_group=0,  # so that Ctrl-C reaches only the harness, which then stops this
            )
        end = time.monotonic() + START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                log_text = (self.folder / "broker.log").read_text(errors="replace")
                raise BenchError(f"The broker did not start: {_end(log_text)}")
            time.sleep(POLL_S)

    @contextmanager
    def restarted_with(self, **variables: str) -> Iterator[None]:
        """Restart with these environment variables; afterwards restart without them."""
        usual = dict(self.environment)
        self.stop()
        self.environment |= variables
        try:
            self.start()
            yield
        finally:
            self.stop()
            self.environment = usual
            self.start()

    def prepare(self, consumers: Sequence[Consumer]) -> None:
        """Create a channel for the consumers; the former channel's consumers are retired."""
        for name in self._consumers:
            self._call("DELETE", f"/channels/{self.channel}/consumers/{name}")
        self._consumers = [consumer.name for consumer in consumers]
        self.register(
            {
                it.name: {"url": it.url, "timeout_ms": it.timeout_ms, **it.settings}
                for it in consumers
            }
        )

    def register(self, consumers: Mapping[str, Mapping[str, Any]]) -> None:
        """Create a channel with exactly these consumers, by name."""
        self.channel = f"bench{next(self._channels)}"
        self._call("PUT", f"/channels/{self.channel}", {})
        for name, values in consumers.items():
            self._call("PUT", f"/channels/{self.channel}/consumers/{name}", values)
        time.sleep(CONFIG_CACHE_S)

    def single(self) -> Route:
        return self._route("messages", self._key)

    def batch(self) -> Route:
        return replace(self._route("messages/batch", self._key, 207), pack=PackBatch())

    def pull(self, consumer: str) -> Route:
        """URL at which a consumer of the current channel receives."""
        return self._route(f"consumers/{consumer}/receive", self._admin_key, 200)

    def _route(self, path: str, key: str, accepted: int = 202) -> Route:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        path = f"/api/v1/channels/{self.channel}/{path}"
        return Route("127.0.0.1", self.port, path, headers, one, (accepted,))

    def admin_key(self, producer: str, *arguments: str) -> str:
        """Create an API key with all scopes; returns the command's output."""
        return self.manage("create_api_key", producer, "--scope", "admin", *arguments)

    def processes(self) -> Mapping[str, Sequence[int]]:
        """Web server, workers (pumps, maintenance, django-q2's own), and the supervisor."""
        groups: dict[str, list[int]] = {"web": [], "worker": [], "supervisor": []}
        for pid in self._pids():
            title = machine.command_line(pid)
            group = "web" if "granian" in title else "worker" if "qcluster" in title else ""
            groups[group or "supervisor"].append(pid)
        return groups

    def kill(self) -> None:
        """Send SIGKILL to all processes, the supervising ones first."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM as an operator does, and SIGKILL if that does not help."""
        self._http.close()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def supervisor(self) -> int | None:
        """Process id of the supervisor; None while it does not run."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def _pids(self) -> list[int]:
        if self._process is None or self._process.poll() is not None:
            return []
        return [self._process.pid, *machine.descendants(self._process.pid)]

    def _is_ready(self) -> bool:
        try:
            return self._http.get(f"{self.address}/readyz", timeout=2).ok
        except requests.RequestException:
            return False

    def read(self, consumer: str, path: str) -> Any:
        """Return what the API reports on a consumer of the current channel. Raises BenchError."""
        return self._call("GET", f"/channels/{self.channel}/consumers/{consumer}{path}").json()

    def depth(self) -> int:
        """Return the broker's own count of unfinished deliveries. Raises BenchError."""
        try:
            text = self._http.get(f"{self.address}/metrics", timeout=10).text
        except requests.RequestException as error:
            raise BenchError(f"No metrics: {error}") from None
        found = dict(DEPTH.findall(text))
        return sum(int(float(found[state])) for state in OPEN)

    def _call(
        self, method: str, path: str, values: Mapping[str, Any] | None = None
    ) -> requests.Response:
        url = f"{self.address}/api/v1{path}"
        response = self._http.request(method, url, json=values, timeout=20)
        if not response.ok:
            raise BenchError(f"{method} {path}: {response.status_code} {response.text}")
        return response


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-5:])
