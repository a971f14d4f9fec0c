"""Run the example applications (clients/examples), each process started as its README says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.support import node, ports, toolchains
from tests.support.broker import ROOT, wait_until

EXAMPLES = ROOT / "clients/examples"
PATIENCE_S = 120.0


def task_receiver(framework: str, port: int) -> tuple[str, ...]:
    """Return the command of a web application that runs the tasks of the Celery example."""
    return {
        "fastapi": ("-m", "uvicorn", "web_fastapi:api", "--port", f"{port}"),
        "flask": ("-m", "flask", "--app", "web_flask", "run", "--port", f"{port}"),
        "django": ("web_django.py", "runserver", "--noreload", f"{port}"),
    }[framework]


COMPILED = ("go-net-http", "java-httpserver")
MAVEN = ("java-servlet", "spring")
"""Built with packages of Maven Central; `make test-sdks` tests them."""


def compiled(example: str, version: str, port: int) -> list[str]:
    """Return the command of a compiled web application; builds it, or skips the test."""
    try:
        if example == "go-net-http":
            return [str(toolchains.build_go_example() / version), f"127.0.0.1:{port}"]
        if example in MAVEN:
            return _in_maven(example, version, port)
        classes = toolchains.build_java_example()
    except toolchains.Missing as missing:
        pytest.skip(str(missing))
    path = f"{classes}:{toolchains.build_java() / 'classes'}"
    return [*toolchains.JVM, "-cp", path, version.capitalize(), str(port)]


def _in_maven(example: str, version: str, port: int) -> list[str]:
    target = toolchains.build_maven_example(example)
    if example == "spring":
        return [
            *toolchains.JVM,
            "-jar",
            str(target / "spring-1.jar"),
            f"--spring.profiles.active={version}",
        ]
    path = f"{target / 'classes'}:{target / 'dependency'}/*"
    return [*toolchains.JVM, "-cp", path, f"shop.{version.capitalize()}", str(port)]


class Program:
    """A command in the folder of an example; its processes form one group.

    For a Node.js example the folder is a copy with its packages installed; the test is skipped
    where that is impossible. With ``workplace`` it works in that folder.
    """

    def __init__(
        self,
        example: str,
        log: Path,
        environment: Mapping[str, str],
        *command: str,
        workplace: Path | None = None,
    ) -> None:
        interpreter: tuple[str, ...] = (sys.executable,)
        if (EXAMPLES / example / "package.json").exists():
            self._folder, interpreter = node.require(example), ("node",)
        else:
            self._folder = EXAMPLES / example
        self._workplace = workplace or self._folder
        self._log, self._output = log, log.with_suffix(".out")
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(log.parent),
            "PYTHONPATH": f"{ROOT / 'clients/python/src'}:{self._folder}",
            "PYTHONUNBUFFERED": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
            **environment,
        }
        self._command = [*interpreter, *command]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str, **environment: str) -> None:
        """Start it; its output is appended to that of earlier runs."""
        with self._log.open("ab") as log, self._output.open("ab") as output:
            self.process = subprocess.Popen(
                [*self._command, *arguments],
                cwd=self._workplace,
                env=self._environment | environment,
                stdout=output,
                stderr=log,
                start_new_session=True,
            )

    def run(self, *arguments: str, expect: int = 0) -> str:
        """Run it to its end; returns its output."""
        done = subprocess.run(
            [*self._command, *arguments],
            cwd=self._workplace,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to all of its processes."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill it with SIGKILL if it runs."""
        if self.is_running:
            self.signal(signal.SIGKILL)
            assert self.process is not None
            self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """Stop it as people do, with SIGTERM to its first process; returns the status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def printed(self) -> list[str]:
        """Complete lines of its standard output; a kill may have cut the last one off."""
        text = self._output.read_text() if self._output.exists() else ""
        return text.split("\n")[:-1]

    def log(self) -> str:
        """Its standard error."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""


class WebShop(Program):
    """One of the web applications that receive orders: ``before`` or ``after``.

    Those in Go and Java are compiled; a test is skipped if the machine cannot compile them.
    """

    def __init__(self, folder: Path, framework: str, version: str) -> None:
        self.port = ports.claim()
        self.url = f"http://127.0.0.1:{self.port}"
        port = str(self.port)
        environment = {"SHOP_DB": str(folder / "shop.sqlite3"), "PORT": port}
        if framework in (*COMPILED, *MAVEN):
            super().__init__(framework, folder / "shop.log", environment)
            self._command = compiled(framework, version, self.port)
            return
        command = {
            "fastapi": ["-m", "uvicorn", f"{version}:app", "--port", port],
            "flask": ["-m", "flask", "--app", version, "run", "--port", port],
            "django-receiving": ["manage.py", "runserver", "--noreload", port],
            "express": [f"{version}.mjs"],
            "hono": [f"{version}.mjs"],
        }
        if framework == "django-receiving":
            environment["SHOP_URLS"] = f"shop.{version}"
            log = folder / "migrate.log"
            Program(framework, log, environment, "manage.py", "migrate", "-v", "0").run()
        super().__init__(framework, folder / "shop.log", environment, *command[framework])

    def serve(self, secret: str) -> None:
        """Start it with the consumer's secret, and wait until it responds."""
        self.start(HOOKSTATION_SECRET=secret)
        wait_until(self._is_there, PATIENCE_S, "the shop does not answer", self.log)

    def orders(self) -> list[int]:
        """Return the numbers of its orders."""
        found: list[int] = httpx.get(f"{self.url}/orders", timeout=60, trust_env=False).json()
        return found

    def post(self, body: bytes, headers: dict[str, str]) -> httpx.Response:
        """Call it as the broker does."""
        url = f"{self.url}/hooks"
        return httpx.post(url, content=body, headers=headers, timeout=60, trust_env=False)

    def _is_there(self) -> bool:
        assert self.is_running, self.log()
        try:
            return httpx.get(f"{self.url}/orders", timeout=60, trust_env=False).is_success
        except httpx.TransportError:
            return False
