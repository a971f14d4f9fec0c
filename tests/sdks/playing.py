"""Play checks.json with each AWS SDK, and run programs based on an SDK, against a real broker.

docs/sqs.md lists the clients, docs/clients/sqs-conformance.md their results. `sdks.json` has the
commands of the drivers, which read one operation per line, as in clients/conformance.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests

from tests.support.broker import ROOT
from tests.support.conformance import ANSWER_TIMEOUT_S, Driver, Proxy, Red, Result, at, difference
from tests.support.door import REGION, Door, client

FOLDER = ROOT / "tests/sdks"
CHECKS: Sequence[Any] = json.loads((FOLDER / "checks.json").read_text(encoding="utf-8"))
CLIENTS: Mapping[str, Any] = json.loads((FOLDER / "sdks.json").read_text(encoding="utf-8"))
SDKS = {name: it for name, it in CLIENTS.items() if "checks" not in it}
"""Clients that have every operation."""
PROGRAMS = {name: it for name, it in CLIENTS.items() if "checks" in it}
"""Programs that use some operations of an SDK."""
OPERATIONS = sorted({step["op"] for check in CHECKS for step in check["steps"] if "op" in step})
OPERATIONS.remove("presign")
PROGRAM_S = 300.0
_SAVED = re.compile(r"\$\{(\w+)\}")
_TARGET = "AmazonSQS."


def is_installed(name: str) -> bool:
    """Whether the client's dependencies are installed, as `make test-sdks` does."""
    needs = CLIENTS[name].get("needs")
    return needs is None or (ROOT / needs).exists()


class Suite:
    """The SQS API, a proxy before it, and the checks played through both."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.proxy = Proxy(door.broker.port)
        self.boto = client(door.environment)
        self.versions: dict[str, str] = {}
        self.used: dict[str, list[str]] = {}
        """By program: the operations that it called with status 200."""

    def close(self) -> None:
        """Close the proxy."""
        self.boto.close()
        self.proxy.close()

    def environment(self, **more: str) -> dict[str, str]:
        """A client's environment: the endpoint, a region and credentials."""
        return {
            "HOME": os.environ["HOME"],
            "AWS_EC2_METADATA_DISABLED": "true",
            **self.door.environment,
            "AWS_ENDPOINT_URL_SQS": self.proxy.url,
            "AWS_REGION": REGION,
            **more,
        }

    def driver(self, name: str, **more: str) -> Driver:
        """Start a driver of a client."""
        return Driver(CLIENTS[name]["command"], self.environment(**more))

    def play_all(self, name: str) -> dict[str, Result]:
        """Play every check with one SDK; return the results by check."""
        with self._running(name) as play:
            self.versions[name] = str(play.driver.hello["version"])
            return {check["name"]: play.check(check) for check in CHECKS}

    def play(self, name: str, check: Mapping[str, Any]) -> Result:
        """Play one check; return its result."""
        with self._running(name) as play:
            return play.check(check)

    def run_program(self, name: str, folder: Path) -> dict[str, Result]:
        """Run a program that makes its own checks and prints each as a line of JSON."""
        self.proxy.answered.clear()
        log = folder / f"{name}.log"
        with log.open("wb") as errors:
            done = subprocess.run(
                [sys.executable if it == "python" else it for it in CLIENTS[name]["command"]],
                cwd=ROOT,
                env={
                    "PATH": os.environ["PATH"],
                    **self.environment(
                        QUEUE=_queue(f"{name}-{time.time_ns()}"), FOLDER=str(folder)
                    ),
                },
                stdout=subprocess.PIPE,
                stderr=errors,
                timeout=PROGRAM_S,
            )
        results: dict[str, Result] = {}
        for line in done.stdout.decode().splitlines():
            if not line.startswith("{"):
                with log.open("a") as written:
                    written.write(f"{line}\n")
                continue
            said = json.loads(line)
            if "version" in said:
                self.versions[name] = said["version"]
            else:
                colour = "green" if said["ok"] else "red"
                results[said["check"]] = Result(colour, said.get("reason", ""))
        answered = {target for target, status in self.proxy.answered if status == 200}
        self.used[name] = sorted(target.removeprefix(_TARGET) for target in answered if target)
        missing = Result("red", f"not made; it ended with {done.returncode}: {_end_of(log)}")
        return {check: results.get(check, missing) for check in CLIENTS[name]["checks"]}

    @contextmanager
    def _running(self, name: str) -> Iterator["Play"]:
        play = Play(self, name)
        try:
            yield play
        finally:
            play.driver.kill()


class Play:
    """Plays checks with one client, one after the other."""

    def __init__(self, suite: Suite, name: str) -> None:
        self.suite, self.name = suite, name
        self.driver = suite.driver(name)
        self._saved: dict[str, Any] = {}
        self._took_s = 0.0
        self._is_altered = False

    def check(self, check: Mapping[str, Any]) -> Result:
        """Play one check with its own queues."""
        queue = _queue(f"{self.name}-{check['name']}")
        self._saved = {"queue": queue, "address": self.suite.proxy.url}
        try:
            for number, step in enumerate(check["steps"], 1):
                try:
                    self._step(self._filled(step))
                except Red as red:
                    raise Red(f"step {number}, {red}") from None
        except Red as red:
            self._restart()
            return Result("red", str(red))
        finally:
            proxy = self.suite.proxy
            proxy.drop_answers = proxy.answer_busy = 0
            if self._is_altered:
                self._restart()
        return Result("green")

    def _step(self, step: dict[str, Any]) -> None:
        if "run" in step:
            getattr(self, f"_run_{step.pop('run')}")(**step)
            return
        operation = step["op"]
        answer = self._answer(step)
        refused = step.get("refused")
        if (refused is None) != ("ok" in answer):
            raise Red(f"{operation}: {json.dumps(answer)[:300]}")
        found = _present(answer["ok"] if refused is None else answer["error"])
        wanted = step.get("expect", {}) if refused is None else refused
        if fault := difference(wanted, found, operation):
            raise Red(fault)
        for path in step.get("absent", ()):
            with suppress(KeyError, IndexError):
                raise Red(f"{operation}: there is {path}, {json.dumps(at(found, path))[:200]}")
        for saved, path in step.get("save", {}).items():
            try:
                self._saved[saved] = at(found, path)
            except (KeyError, IndexError):
                raise Red(f"{operation}: there is no {path}") from None

    def _answer(self, step: Mapping[str, Any]) -> Any:
        end = time.monotonic() + ANSWER_TIMEOUT_S
        if "until" in step:
            return self._received(step["until"], step["input"], end)
        said = {name: step[name] for name in ("input", "address", "query") if name in step}
        answer = self._ask(step["op"], **said)
        while "repeat_until" in step and time.monotonic() < end:
            if "ok" in answer and at(answer["ok"], step["at"]) == step["repeat_until"]:
                break
            time.sleep(0.2)
            answer = self._ask(step["op"], **said)
        return answer

    def _received(self, count: int, given: Mapping[str, Any], end: float) -> Any:
        """Receive until ``count`` messages came; return them in the order of their bodies."""
        found: list[Any] = []
        while len(found) < count:
            if time.monotonic() > end:
                raise Red(f"ReceiveMessage: {len(found)} of {count} messages came")
            answer = self._ask("ReceiveMessage", input={"WaitTimeSeconds": 5, **given})
            if "error" in answer:
                return answer
            found += answer["ok"].get("Messages") or []
        return {"ok": {"Messages": sorted(found, key=lambda message: str(message["Body"]))}}

    def _ask(self, operation: str, **said: Any) -> Any:
        began = time.monotonic()
        answer = self.driver.ask(operation, **said)
        self._took_s = time.monotonic() - began
        return answer

    def _filled(self, value: Any) -> Any:
        """Insert saved values, and expand repeated texts."""
        if isinstance(value, str):
            if whole := _SAVED.fullmatch(value):
                return self._saved.get(whole[1], value)
            return _SAVED.sub(lambda it: str(self._saved[it[1]]), value)
        if isinstance(value, list):
            return [self._filled(one) for one in value]
        if isinstance(value, dict):
            if "repeat" in value:
                return value["repeat"] * value["times"]
            return {name: self._filled(one) for name, one in value.items()}
        return value

    def _restart(self, **more: str) -> None:
        self.driver.kill()
        self.driver = self.suite.driver(self.name, **more)
        self._is_altered = bool(more)

    # -- Steps of the runner ------------------------------------------------------------------

    def _run_restart_driver(self, environment: dict[str, str]) -> None:
        self._restart(**environment)

    def _run_send_in(self, seconds: float, url: str, body: str) -> None:
        def send() -> None:
            self.suite.boto.send_message(QueueUrl=url, MessageBody=body)

        threading.Timer(seconds, send).start()

    def _run_took(self, **bounds: float) -> None:
        if not bounds["from"] <= self._took_s <= bounds["to"]:
            raise Red(f"it took {self._took_s:.1f} s, which is not in {bounds}")

    def _run_drop_answers(self, count: int) -> None:
        self.suite.proxy.drop_answers = count

    def _run_answer_busy(self, count: int) -> None:
        self.suite.proxy.answer_busy = count

    def _run_fetch(self, url: str, status: int) -> None:
        answer = requests.get(url, timeout=ANSWER_TIMEOUT_S)
        if answer.status_code != status:
            raise Red(f"fetch: {answer.status_code} in place of {status}: {answer.text[:300]}")


def _queue(text: str) -> str:
    """Convert a text to a queue name."""
    return re.sub("[^A-Za-z0-9]+", "-", text)


def _present(value: Any) -> Any:
    """Drop members that are null or empty, which each language represents differently."""
    if isinstance(value, list):
        return [_present(one) for one in value]
    if isinstance(value, dict):
        shown = {name: _present(one) for name, one in value.items()}
        return {name: one for name, one in shown.items() if one not in (None, [], {})}
    return value


def _end_of(log: Path) -> str:
    return " ".join(log.read_text(errors="replace")[-500:].split())


def operations_of(check: Mapping[str, Any]) -> set[str]:
    """The operations that a check calls."""
    return {step["op"] for step in check["steps"] if "op" in step}


def page(suite: Suite, matrix: Mapping[str, Mapping[str, Result]]) -> str:
    """The results as a page of the documentation."""
    names = list(matrix)
    lines = [
        "# Conformance of SQS clients",
        "",
        "Unmodified clients of Amazon SQS against a real broker. Each SDK plays every check of",
        "[`tests/sdks/checks.json`](../../tests/sdks/checks.json); programs that use an SDK",
        "have their own checks. `make test-sdks` installs them, runs all and writes this page.",
        "",
        "| Client | Version | What it is |",
        "|---|---|---|",
        *(
            f"| {name} | {suite.versions.get(name, '')} | {CLIENTS[name]['about']} |"
            for name in names
        ),
        "",
        "## Operations",
        "",
        "For an SDK: how many of the checks that call the operation pass. For a program: whether",
        "it called the operation in its checks and got a 200.",
        "",
        _row("Operation", names),
        f"|---|{'---|' * len(names)}",
        *(_row(it, [_cell(suite, matrix, name, it) for name in names]) for it in OPERATIONS),
        "",
        "## Checks of the SDKs",
        "",
        _row("Check", ["Expected behaviour", *(name for name in names if name in SDKS)]),
        f"|---|---|{'---|' * len(SDKS.keys() & matrix.keys())}",
    ]
    for check in CHECKS:
        results = [str(matrix[name][check["name"]]) for name in names if name in SDKS]
        lines.append(_row(check["name"], [check["about"], *results]))
    lines += ["", "## Checks of programs", "", "| Client | Expected behaviour | |", "|---|---|---|"]
    lines += [
        f"| {name} | {PROGRAMS[name]['checks'][check]} | {result} |"
        for name in names
        if name in PROGRAMS
        for check, result in matrix[name].items()
    ]
    return "\n".join(lines) + "\n"


def _row(first: str, cells: Sequence[str]) -> str:
    return f"| {first} | {' | '.join(cells)} |"


def _cell(
    suite: Suite, matrix: Mapping[str, Mapping[str, Result]], name: str, operation: str
) -> str:
    if name in PROGRAMS:
        return "used" if operation in suite.used[name] else ""
    results = [matrix[name][it["name"]] for it in CHECKS if operation in operations_of(it)]
    passed = sum(result.colour == "green" for result in results)
    return f"{passed} of {len(results)}"
