"""Run shell sessions of the documentation in a real shell, and compare the output.

A block marked ``console`` has commands after ``$`` (with ``>`` for continuation lines) and their
output; ``...`` stands for anything. A block without a command is further output of the last started
program.
"""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_S = 120.0
START_S = 300.0
_MARK = "@@end@@"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STAYS = re.compile(r"python manage\.py (broker|receiver)\b")
_VOLATILE = {
    r"\b(msg_test|msg|dlv|rpl|att)_[0-9a-z]{13}\b": r"\1_ID",
    r"\bwhsec_[A-Za-z0-9+/]{43}=": "whsec_SECRET",
    r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z": "INSTANT",
    r"\b\d{4}-\d\d-\d\d \d\d:\d\d\b": "MINUTE",
    r"\b\d\d:\d\d:\d\d\b": "TIME",
    r"\bKey [a-z2-7]{16}\b": "Key ID",
}


@dataclass(slots=True)
class Exchange:
    """A command and its output; without a command, further output."""

    command: str
    expected: list[str] = field(default_factory=list)

    @property
    def stays(self) -> bool:
        """Whether the program keeps running, as in a terminal of its own."""
        return bool(_STAYS.search(self.command))

    @property
    def only_reads(self) -> bool:
        """Whether it may be repeated until its result is as expected."""
        return self.command.startswith("call ") and not re.search(r" -(d|X) ", self.command)


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of one language."""
    return [found[2] for found in _FENCE.finditer(text) if found[1] == language]


def exchanges(text: str) -> list[Exchange]:
    """Return all commands and outputs of a page's ``console`` blocks, in order."""
    return [exchange for block in blocks(text, "console") for exchange in _of_block(block)]


def _of_block(block: str) -> Iterator[Exchange]:
    current: Exchange | None = None
    for line in block.splitlines():
        if line.startswith("$ "):
            if current is not None:
                yield current
            current = Exchange(line.removeprefix("$ "))
        elif current is not None and not current.expected and line.startswith(">"):
            current.command += "\n" + line[2:]
        else:
            current = current or Exchange("")
            current.expected.append(line)
    if current is not None:
        yield current


def is_as_said(expected: str, actual: str, *, anywhere: bool = False) -> bool:
    """Whether a text is, or contains, the documented one, except for ids, secrets and times."""
    for pattern, word in _VOLATILE.items():
        expected, actual = re.sub(pattern, word, expected), re.sub(pattern, word, actual)
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
    look = re.search if anywhere else re.fullmatch
    return look(pattern, actual.strip(), re.DOTALL) is not None


def wait_for_port(port: int) -> None:
    """Wait until a process listens."""
    end = time.monotonic() + START_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < end, f"nobody listens on port {port}"
        time.sleep(0.1)


class Session:
    """A shell in a folder that looks like the repository, with data of its own.

    ``web`` and ``receiver`` are the ports that stand for the documentation's 8000 and 9000.
    """

    def __init__(self, folder: Path, root: Path, prefix: Path, *, web: int, receiver: int) -> None:
        self.folder = folder
        self.secret = ""
        """The signing secret that was shown last."""
        self.web, self.receiver = web, receiver
        self._ports = {
            "127.0.0.1:8000": f"127.0.0.1:{web}",
            "127.0.0.1:9000": f"127.0.0.1:{receiver}",
        }
        self._running: list[tuple[int, Path]] = []
        (folder / "manage.py").symlink_to(root / "manage.py")
        (folder / ".venv").symlink_to(prefix)
        self._shell = subprocess.Popen(
            ["/bin/bash", "--norc"],
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "HOOKSTATION_DATA_DIR": str(folder / "data"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def play(self, script: list[Exchange]) -> None:
        """Run everything; fails at the first output that differs from the documentation."""
        for exchange in script:
            if not exchange.command:
                self.wait_for_output("\n".join(exchange.expected))
            elif exchange.stays:
                self._start(exchange)
            else:
                self._ask(exchange)

    def run(self, command: str) -> tuple[str, int]:
        """Return the output of one command, and its exit code."""
        shell = self._shell
        assert shell.stdin is not None
        assert shell.stdout is not None
        command = command.replace("whsec_...", self.secret)
        for said, real in self._ports.items():
            command = command.replace(said, real)
        shell.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '\\n{_MARK}%s\\n' $?\n")
        shell.stdin.flush()
        lines: list[str] = []
        for line in shell.stdout:
            if line.startswith(_MARK):
                return self._as_documented("".join(lines)), int(line.removeprefix(_MARK))
            lines.append(line)
        raise AssertionError(f"the shell ended: {''.join(lines)}")

    def start(self, command: str) -> None:
        """Run a program in the background until the session ends."""
        log = self.folder / f"program{len(self._running)}.log"
        log.touch()  # the shell may open it later
        pid, _ = self.run(f"{command} >{log} 2>&1 & echo $!")
        self._running.append((int(pid), log))

    def output(self) -> str:
        """Return the output so far of the program that was started last."""
        return self._as_documented(self._running[-1][1].read_text("utf-8", errors="replace"))

    def close(self) -> None:
        """Stop everything that was started."""
        for pid, _ in reversed(self._running):
            os.kill(pid, signal.SIGTERM)
        self.run("wait")
        with self._shell:
            self._shell.communicate("exit\n", timeout=START_S)

    def _ask(self, exchange: Exchange) -> None:
        expected = "\n".join(exchange.expected)
        end = time.monotonic() + (PATIENCE_S if exchange.only_reads else 0.0)
        while True:
            actual, code = self.run(exchange.command)
            # The documented output may be an error; a command without output must succeed.
            if is_as_said(expected, actual) if expected else code == 0:
                break
            said = f"$ {exchange.command}\n{actual}\nexit code {code}; documented:\n{expected}"
            assert time.monotonic() < end, said
            time.sleep(0.3)
        if found := re.search(r"whsec_[A-Za-z0-9+/]{43}=", actual):
            self.secret = found[0]

    def _start(self, exchange: Exchange) -> None:
        port = self.web if "manage.py broker" in exchange.command else self.receiver
        self.start(f"{exchange.command} --bind 127.0.0.1:{port}")
        self.wait_for_output("\n".join(exchange.expected))
        wait_for_port(port)

    def wait_for_output(self, expected: str) -> None:
        """Wait until the program that was started last has printed this."""
        end = time.monotonic() + START_S
        while not is_as_said(expected, self.output(), anywhere=True):
            assert time.monotonic() < end, f"{self.output()}\ndocumented:\n{expected}"
            time.sleep(0.1)

    def _as_documented(self, text: str) -> str:
        for said, real in self._ports.items():
            text = text.replace(real, said)
        return text
