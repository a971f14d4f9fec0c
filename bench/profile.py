"""Profile: where the microseconds of one delivered message go, from samples of Python stacks."""

import linecache
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from bench.adapters import BenchError
from bench.results import Result, series

RATE = 100
"""Looks a second at each process."""
STOP_S = 20.0
ATTACHED_S = 1.0
GROUPS = ("web", "worker")
LEAST_US = 0.5
"""A room with less has no line."""
LIBCURL, OTHER = "libcurl", "other"
UNSEEN = "unseen"
"""CPU time without a Python stack."""
ROOMS = (
    (UNSEEN, "outside of Python: the web server's own part", r"^$"),
    (LIBCURL, "libcurl", r"^$"),
    ("driver", "database driver", r"/MySQLdb/|/broker_site/mysql/|/sqlite3/"),
    ("orm", "Django's database layer", r"/django/db/"),
    ("metrics", "metrics", r"/prometheus_client/|/metrics\.py"),
    (
        "accept",
        "accept: group, statements, sealing",
        r"/channels_app/(steps/accept|group_commit|sealing|rules/encryption)",
    ),
    ("fan_out", "fan-out", r"/delivery/steps/dispatch"),
    ("claim", "claim and discovery", r"/delivery/steps/(claim|horizon)"),
    ("settle", "settle", r"/delivery/steps/settle|/delivery/models/counter"),
    ("content", "content: bodies read and opened", r"/delivery/steps/parcels|/runtime/hold"),
    ("sender", "sender", r"/delivery/steps/send/"),
    (
        "envelope",
        "envelope and signature",
        r"/delivery/rules/(envelope|signing)|/delivery/runtime/outgoing|/channels_app/rules/ids",
    ),
    ("statements", "statements and transactions", r"/channels_app/(models/raw|transactions)"),
    ("view", "our view", r"/channels_app/(api|directory|rules)"),
    ("pump", "the pump's loop", r"/delivery/(runtime|rules)/"),
    ("rest_framework", "Django REST Framework", r"/rest_framework/"),
    ("site", "our entry to the site", r"/broker_site/"),
    ("django", "Django", r"/django/"),
    ("server", "web server, its part in Python", r"/granian/"),
    (OTHER, "other", r"^$"),
)
"""Key, title, and what the path of a stack's innermost matching frame looks like."""
CALLS_LIBCURL = re.compile(r"\.(socket_action|info_read|add_handle|remove_handle|setopt|getinfo)\(")
THREAD = re.compile(r"^thread \((\d+)\)")
FRAME = re.compile(r"^(?P<function>.*) \((?P<file>.+):(?P<line>\d+)\)$")
_PATTERNS = [(key, re.compile(pattern)) for key, _, pattern in ROOMS]


COUNTERS = {
    "Com_select": "SELECT",
    "Com_insert": "INSERT",
    "Com_update": "UPDATE",
    "Com_commit": "COMMIT",
    "Handler_read": "rows and index entries read",
    "Handler_write": "rows inserted",
    "Handler_update": "rows updated",
    "Innodb_data_fsyncs": "fsyncs, of log and data",
    "Innodb_os_log_written": "bytes of redo log",
    "Bytes_received": "bytes received",
}
"""The server's counters, and what they count. Handler_read stands for all that begin so."""


def counters(status: Mapping[str, str]) -> dict[str, int]:
    """Those of a server's whole status."""
    found = {name: int(status[name]) for name in COUNTERS if name in status}
    reads = [int(value) for name, value in status.items() if name.startswith("Handler_read_")]
    return found | {"Handler_read": sum(reads)}


def room(stack: str) -> str:
    """Which room a stack belongs to, as `py-spy record --format raw` writes it: outermost first."""
    frames = [found for frame in stack.split(";") if (found := FRAME.match(frame))]
    if not frames:
        return UNSEEN
    innermost = frames[-1]
    if "/steps/send/" in innermost["file"]:
        # C code has no frame of its own: the line that calls it is the innermost.
        line = linecache.getline(innermost["file"], int(innermost["line"]))
        if CALLS_LIBCURL.search(line):
            return LIBCURL
    for frame in reversed(frames):
        for key, pattern in _PATTERNS:
            if pattern.search(frame["file"]):
                return key
    return OTHER


def shares(raw: str, cpu: Mapping[int, float]) -> dict[str, float]:
    """CPU of one process by room: each thread's own is divided as its samples are.

    ``raw`` is py-spy's output, ``cpu`` what each thread has used, by its number. What nobody looked
    at, or looked at without finding Python there, is unseen.
    """
    samples: dict[int, Counter[str]] = {}
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        if found_thread := THREAD.match(stack):
            samples.setdefault(int(found_thread[1]), Counter())[room(stack)] += int(count)
    found: dict[str, float] = {}
    for thread, used in cpu.items():
        looks = samples.get(thread, Counter({UNSEEN: 1}))
        for key, times in looks.items():
            found[key] = found.get(key, 0.0) + used * times / looks.total()
    return found


def thread_cpu(pid: int) -> dict[int, float]:
    """CPU seconds of each living thread."""
    found: dict[int, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


@contextmanager
def watching(pids: Sequence[int]) -> Iterator[dict[int, str]]:
    """py-spy's raw output by process, complete once the context has ended. Raises BenchError."""
    found: dict[int, str] = {}
    with tempfile.TemporaryDirectory(prefix="hookstation-profile-") as folder:
        watchers = {pid: _watch(pid, Path(folder) / f"{pid}") for pid in pids}
        try:
            time.sleep(ATTACHED_S)
            yield found
        finally:
            for watcher in watchers.values():
                watcher.send_signal(signal.SIGINT)
            for pid, watcher in watchers.items():
                _, said = watcher.communicate(timeout=STOP_S)
                output = Path(folder) / f"{pid}"
                found[pid] = output.read_text() if output.exists() else ""
                if watcher.returncode and not found[pid]:
                    raise BenchError(f"py-spy: {said.strip().splitlines()[:1]}")


def _watch(pid: int, output: Path) -> "subprocess.Popen[str]":
    tool = Path(sys.executable).with_name("py-spy")
    if not tool.exists():
        raise BenchError("py-spy is missing: install the dependency group `bench`.")
    options = ["--format", "raw", "--full-filenames", "--threads", "--rate", str(RATE)]
    return subprocess.Popen(
        [tool, "record", *options, "--pid", str(pid), "--output", output],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def markdown(results: Sequence[Result]) -> str:
    """Tables of what was found on MariaDB, medians over the runs; empty when nothing was."""
    ours = [result for result in results if result.is_ours and result.database == "mariadb"]
    values = {
        key: median(series(ours, key))
        for key in dict.fromkeys(key for result in ours for key in result.values)
        if key.startswith("profile.")
    }
    if not values:
        return ""
    total = values["profile.total"]
    lines = [
        "| CPU time of one delivered message goes into | web | worker | share |",
        "|---|---|---|---|",
    ]
    rooms = [
        (title, [values.get(f"profile.{group}.{key}", 0.0) for group in GROUPS])
        for key, title, _ in ROOMS
    ]
    for title, costs in sorted(rooms, key=lambda row: -sum(row[1])):
        if sum(costs) >= LEAST_US:
            cells = [title, *map(_us, costs), f"{sum(costs) / total:.0%}"]
            lines.append(f"| {' | '.join(cells)} |")
    database = values["profile.database"]
    lines.append(f"| database server | {_us(database)} | | {database / total:.0%} |")
    lines.append(f"| all | {_us(total)} | | |")
    lines += ["", "| The database server does for one delivered message | |", "|---|---|"]
    lines += [
        f"| {title} | {values[f'profile.{name}']:,.2f} |"
        for name, title in COUNTERS.items()
        if f"profile.{name}" in values
    ]
    return "\n".join(lines)


def _us(value: float) -> str:
    return f"{value:,.0f} µs" if value else ""
