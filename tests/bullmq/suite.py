"""Run BullMQ's own tests, unmodified, on a real broker: `make test-bullmq`.

The tests come from a checkout of BullMQ. They run in ``.bullmq`` with the published package of the
same version, and with the packed backend (clients/node-bullmq) in place of Redis. `left-out.json`
lists the files that do not run. A test that sends a command to Redis is left out, too.
"""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import node
from tests.support.broker import ROOT, running
from tests.support.toolchains import Missing

SOURCE = ROOT / "tests/bullmq"
FOLDER = ROOT / ".bullmq"
RESULTS = FOLDER / "results"
PAGE = ROOT / "docs/clients/bullmq-tests.md"
LEFT_OUT: Mapping[str, str] = json.loads((SOURCE / "left-out.json").read_text(encoding="utf-8"))
"""Reasons by name of the file, without ``.test.ts``; a name may have wildcards."""
LIBRARIES = ("ioredis", "moment", "progress", "rrule", "semver", "sinon", "test-console", "vitest")
"""What the tests import, in the versions of BullMQ's ``package.json``."""
LINKS = {"src": "node_modules/bullmq/dist/cjs", "dist": "node_modules/bullmq/dist"}
"""Where the tests find the folders of a checkout that they import."""
FILE_S = 840
"""Seconds for one file of tests."""
AT_A_TIME = 6
"""Files of tests that run side by side. They mostly wait; each uses queues of its own."""
AGAIN_AT_A_TIME = 3
"""The same for files of which fewer tests passed than before."""
KEPT = 0.6
"""This part of a file's tests that passed before must pass. In some files most depend on time."""
NEEDS_REDIS = "NEEDS REDIS"
_NOT_SUPPORTED = re.compile(r'([^:"\n]+?)(?: \d+)? is not supported by @hookstation/bullmq')
_TIMED_OUT = re.compile(r"timed out in \d+")


@dataclass
class Share:
    """Results of one file of tests, or of several."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    """Names of the tests."""
    causes: Counter[str] = field(default_factory=Counter)
    """How many tests failed for which reason."""
    redis: int = 0
    """Tests left out because they send commands to Redis."""
    skipped: int = 0
    """Tests that BullMQ skips."""

    @property
    def ran(self) -> int:
        return self.passed + len(self.failed)

    def __str__(self) -> str:
        percent = 100 * self.passed / max(self.ran, 1)
        return f"{self.passed} of {self.ran} tests pass: {percent:.1f} %"


def main(checkout: Path, *names: str) -> int:
    """Run the files of these names, or all, and write the page; returns the exit status.

    It is 1, and the page stays, if too few tests of a file pass, compared with the page, also when
    the file runs once more.
    """
    said = json.loads((checkout / "package.json").read_text(encoding="utf-8"))
    files = sorted(path.name.removesuffix(".test.ts") for path in checkout.glob("tests/*.test.ts"))
    runnable = [name for name in files if reason(name) is None]
    if unknown := sorted(set(names) - set(runnable)):
        print(f"not a file of tests that runs: {', '.join(unknown)}", file=sys.stderr)
        return 2
    try:
        install(checkout, said)
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as broker:
        place = {
            "HOOKSTATION_URL": f"http://127.0.0.1:{broker.port}",
            "HOOKSTATION_KEY": broker.key,
        }
        largest_first = sorted(names or runnable, key=lambda name: -size(checkout, name))
        run_all(largest_first, AT_A_TIME, place)
        before = recorded()
        if worse := [name for name in largest_first if is_worse(name, before)]:
            print(f"Once more, since more tests passed before: {', '.join(worse)}", flush=True)
            run_all(worse, AGAIN_AT_A_TIME, place)
    shares = {name: read_results(name) for name in runnable if results_of(name).exists()}
    print("\n".join(table(files, shares)))
    print(total(shares))
    if worse := [name for name in largest_first if is_worse(name, before)]:
        for name in worse:
            passed = read_results(name).passed
            print(f"{name}: {before[name]} tests passed before, now {passed}", file=sys.stderr)
        print(f"{PAGE} stays as it was. If that is intended, change its rows.", file=sys.stderr)
        return 1
    PAGE.write_text(page(said["version"], files, shares), encoding="utf-8")
    return 0


def recorded() -> Mapping[str, int]:
    """The number of tests of each file that passed, as the page says."""
    rows = re.findall(r"^\| `(.+)` \| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: int(number) for name, number in rows}


def is_worse(name: str, before: Mapping[str, int]) -> bool:
    """Whether a file has lost more tests than `KEPT` allows, by the numbers that passed before."""
    return read_results(name).passed < KEPT * before.get(name, 0)


def size(checkout: Path, name: str) -> int:
    """Bytes of a file of tests, which say roughly how long it takes."""
    return (checkout / f"tests/{name}.test.ts").stat().st_size


def reason(name: str) -> str | None:
    """Why a file of tests does not run; None if it runs."""
    for pattern, why in LEFT_OUT.items():
        if fnmatch.fnmatch(name, pattern):
            return why
    return None


def install(checkout: Path, said: Mapping[str, Any]) -> None:
    """Copy the tests, and install BullMQ, its tests' libraries and the packed backend."""
    packages = [node.packed(node.build_client()), node.packed(node.build_bullmq())]
    libraries = {name: said["devDependencies"].get(name, "*") for name in LIBRARIES}
    wanted = {
        "private": True,
        "dependencies": {"bullmq": said["version"], **libraries},
        "built": [path.stat().st_mtime_ns for path in packages],
    }
    FOLDER.mkdir(exist_ok=True)
    manifest, stamp = FOLDER / "package.json", FOLDER / ".installed"
    if not stamp.exists() or json.loads(stamp.read_text(encoding="utf-8")) != wanted:
        stamp.unlink(missing_ok=True)
        # Results of another version say nothing about this one.
        shutil.rmtree(RESULTS, ignore_errors=True)
        manifest.write_text(json.dumps(wanted), encoding="utf-8")
        node.npm(FOLDER, "install", "--no-package-lock")
        node.npm(FOLDER, "install", "--no-save", "--no-package-lock", *map(str, packages))
        stamp.write_text(json.dumps(wanted), encoding="utf-8")
    for link, target in LINKS.items():
        (FOLDER / link).unlink(missing_ok=True)
        (FOLDER / link).symlink_to(target)
    shutil.rmtree(FOLDER / "tests", ignore_errors=True)
    shutil.copytree(checkout / "tests", FOLDER / "tests")
    for name in ("setup.ts", "vitest.config.mjs"):
        shutil.copyfile(SOURCE / name, FOLDER / name)
    RESULTS.mkdir(exist_ok=True)


def run_all(names: Iterable[str], at_a_time: int, environment: Mapping[str, str]) -> None:
    """Run files of tests, so many at a time."""
    with ThreadPoolExecutor(at_a_time) as pool:
        list(pool.map(lambda name: run(name, **environment), names))


def results_of(name: str) -> Path:
    """The file with the results of a file of tests, one line of JSON for each test."""
    return RESULTS / f"{name}.jsonl"


def run(name: str, **environment: str) -> None:
    """Run one file of tests in a process of its own; its output is in ``.bullmq/results``."""
    began = time.monotonic()
    results_of(name).write_text("", encoding="utf-8")
    backend = FOLDER / "node_modules/@hookstation/bullmq"
    environment |= {
        "PATH": os.environ["PATH"],
        "HOME": str(FOLDER),
        "RESULTS": str(results_of(name)),
        # BullMQ's tests skip what opens a connection to Redis in a process of its own.
        "BULLMQ_TEST_BACKEND": "postgres",
        # Processors in files use the broker, too.
        "NODE_OPTIONS": f"--require {backend}",
    }
    command = [node.program("node"), "node_modules/vitest/vitest.mjs", "run"]
    with (RESULTS / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"tests/{name}.test.ts"],
            cwd=FOLDER,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(FILE_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            errors = [f"timed out in {FILE_S} s"]
            line = {"test": "all that follow", "state": "failed", "errors": errors}
            with results_of(name).open("a", encoding="utf-8") as results:
                results.write(f"{json.dumps(line)}\n")
    if not results_of(name).stat().st_size:
        sys.exit(f"no test of {name} ran: {RESULTS / name}.log says why")
    print(f"{name}, {time.monotonic() - began:.0f} s: {summary(name)}", flush=True)


def read_results(name: str) -> Share:
    """Count the results of a file of tests."""
    share = Share()
    for line in results_of(name).read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        errors = "\n".join(result["errors"])
        if result["state"] == "passed":
            share.passed += 1
        elif result["state"] == "skipped":
            share.skipped += 1
        elif NEEDS_REDIS in errors:
            share.redis += 1
        else:
            share.failed.append(result["test"])
            share.causes[cause(errors)] += 1
    return share


def cause(errors: str) -> str:
    """Why a test failed: the feature that is not supported, or the kind of error."""
    if found := _NOT_SUPPORTED.search(errors):
        return f"not supported: {found[1].strip()}"
    return "timed out" if _TIMED_OUT.search(errors) else "another result"


def summary(name: str) -> str:
    """Results of one file on one line, then the names of the failed tests."""
    share = read_results(name)
    return "\n  failed: ".join([str(share), *share.failed])


def total(shares: Mapping[str, Share]) -> Share:
    """Add up the results of files."""
    total = Share()
    for share in shares.values():
        total.passed += share.passed
        total.failed += share.failed
        total.causes += share.causes
    return total


def table(files: Iterable[str], shares: Mapping[str, Share]) -> list[str]:
    """The lines of the table of all files."""
    lines = ["| File | Passed | Failed | Left out |", "|---|---|---|---|"]
    for name in files:
        if why := reason(name):
            cells = ["", "", f"all: {why}"]
        elif name not in shares:
            cells = ["", "", "not run"]
        else:
            share = shares[name]
            omitted = [
                *([f"{share.redis} that send commands to Redis"] if share.redis else []),
                *([f"{share.skipped} that BullMQ skips"] if share.skipped else []),
            ]
            cells = [str(share.passed), str(len(share.failed)), ", ".join(omitted)]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


def page(version: str, files: Sequence[str], shares: Mapping[str, Share]) -> str:
    """The results as a page of the documentation."""
    whole = total(shares)
    missing = [name for name in files if reason(name) is None and name not in shares]
    rest = f" Files that have not run: {len(missing)}." if missing else ""
    ours = json.loads((node.BULLMQ / "package.json").read_text(encoding="utf-8"))["version"]
    lines = [
        "# BullMQ's own tests",
        "",
        f"The tests of BullMQ {version}, unmodified, on a real broker with `@hookstation/bullmq`",
        f"{ours}. `make test-bullmq BULLMQ=PATH`, with the path of a checkout of BullMQ, runs them",
        "and writes this page. [BullMQ](bullmq.md) lists what is supported and what differs.",
        "",
        f"**{whole}.**{rest}",
        "",
        *table(files, shares),
        "",
        "## Why tests fail",
        "",
        "A test that needs what is not supported counts as failed.",
        "",
        "| Cause | Tests |",
        "|---|---|",
        *(f"| {why} | {number} |" for why, number in sorted(whole.causes.items())),
    ]
    return "\n".join(lines) + "\n"
