"""Attribute the CPU time of one delivered message to parts of the code, from stack samples."""

import linecache
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bench import machine
from bench.internal import sampling
from bench.internal.sampling import INTERVAL_S
from bench.machine import CpuTimes
from bench.results import Result, markdown_table, series
from bench.stage import Scenario, Stage, Values

TIMES = 2
"""Multiple of the throughput's messages, since samples are few."""
GROUPS = ("web", "worker")
MIN_US = 0.5
"""Microseconds below which a part has no line."""
LIBCURL, OTHER = "libcurl", "other"
UNSEEN = "unseen"
"""CPU time without a Python stack."""
PARTS = (
    (UNSEEN, "outside of Python: the web server's own part", r"^$"),
    (LIBCURL, "libcurl", r"^$"),
    ("driver", "database driver", r"/MySQLdb/|/broker_site/server/mysql/|/sqlite3/"),
    ("orm", "Django's database layer", r"/django/db/"),
    ("metrics", "metrics", r"/prometheus_client/|/metrics\.py"),
    (
        "accept",
        "accept: group, statements, sealing",
        r"/channels_app/(ingest/accept|registry/data_encryption|core/encryption)",
    ),
    ("fan_out", "fan-out", r"/delivery/queue/fanout"),
    ("claim", "claim and discovery", r"/delivery/queue/(claim|due_times)"),
    ("settle", "settle", r"/delivery/queue/settle|/delivery/models/counter"),
    (
        "content",
        "content: bodies read and opened",
        r"/delivery/transport/payloads|/delivery/pump/body_buffer",
    ),
    ("sender", "sender", r"/delivery/transport/"),
    (
        "envelope",
        "envelope and signature",
        r"/delivery/core/signing|/channels_app/core/ids",
    ),
    ("statements", "statements and transactions", r"/channels_app/database/"),
    ("view", "our view", r"/channels_app/(api|registry/cache|core)"),
    ("pump", "the pump's loop", r"/delivery/(pump|core|processes|cluster)/"),
    ("rest_framework", "Django REST Framework", r"/rest_framework/"),
    ("site", "our entry to the site", r"/broker_site/"),
    ("django", "Django", r"/django/"),
    ("server", "web server, its part in Python", r"/granian/"),
    (OTHER, "other", r"^$"),
)
"""Key, title, and pattern for the path of the innermost matching frame of a stack."""
CALLS_LIBCURL = re.compile(r"\.(socket_action|info_read|add_handle|remove_handle|setopt|getinfo)\(")
FRAME = re.compile(r'File "(.+)", line (\d+) in ')
SAMPLE = "(most recent call first):"
_PATTERNS = [(key, re.compile(pattern)) for key, _, pattern in PARTS]

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
"""Counters of the server with their meaning. Handler_read is the sum of all with that prefix."""


def counters(status: Mapping[str, str]) -> dict[str, int]:
    found = {name: int(status[name]) for name in COUNTERS if name in status}
    reads = [int(value) for name, value in status.items() if name.startswith("Handler_read_")]
    return found | {"Handler_read": sum(reads)}


def part_of(stack: str) -> str:
    """Return the part of the code of a stack in faulthandler's format, innermost frame first."""
    frames = [(file, int(line)) for file, line in FRAME.findall(stack)]
    if not frames:
        return UNSEEN
    file, number = frames[0]
    # C code has no frame of its own; the innermost frame is the line that calls it.
    if "/delivery/transport/" in file and CALLS_LIBCURL.search(linecache.getline(file, number)):
        return LIBCURL
    for file, _ in frames:
        for key, pattern in _PATTERNS:
            if pattern.search(file):
                return key
    return OTHER


def samples(text: str) -> list[str]:
    return text.split(SAMPLE)[1:]


def interval_s(texts: Sequence[str], cpu_s: float) -> float:
    """Return CPU seconds between two samples of processes that run only Python.

    It is slightly more than the requested interval, since the kernel checks at its own clock ticks.
    """
    count = sum(len(samples(text)) for text in texts)
    return cpu_s / count if count else INTERVAL_S


def shares(text: str, cpu_s: float, each_s: float) -> dict[str, float]:
    """Return CPU seconds of one process by part of the code, given the seconds between samples.

    The remaining time had no Python stack: native threads of the web server.
    """
    counts = Counter(map(part_of, samples(text)))
    found = {key: count * each_s for key, count in counts.items()}
    if (left := cpu_s - sum(found.values())) > 0:
        found[UNSEEN] = found.get(UNSEEN, 0.0) + left
    return found


def sample(stage: Stage) -> Values:
    """Return CPU time per message by part of the code, and the database's counters."""
    with tempfile.TemporaryDirectory(prefix="hookstation-profile-") as name:
        folder = Path(name)
        # Without a timeout, since the signal would interrupt waits of MariaDB's client that have
        # one.
        variables = {"DATABASE_URL": f"{stage.database.url}?read_timeout=0"}
        with stage.hookstation.restarted_with(**sampling.environment(folder), **variables):
            return _sample(stage, folder)


def _sample(stage: Stage, folder: Path) -> Values:
    consumers = stage.consumers("take")
    stage.deliver(stage.sizes.warm_up, consumers)
    groups = {str(pid): group for group, pids in stage.broker.processes().items() for pid in pids}
    counted, before, start = _counters(stage), stage.cpu_times(), _each_process(groups)
    sizes = {pid: len(_samples(folder, pid)) for pid in groups}
    flow = stage.deliver(stage.sizes.messages * TIMES, consumers)
    used = stage.cpu_times().since(before)
    spent, end = _each_process(groups).since(start), _counters(stage)
    texts = {pid: _samples(folder, pid)[sizes[pid] :].decode(errors="replace") for pid in groups}
    microseconds = 1e6 / flow.deliveries
    values: Values = {"database": used["database"] * microseconds}
    workers = [pid for pid in groups if groups[pid] == "worker"]
    each_s = interval_s([texts[pid] for pid in workers], sum(spent[pid] for pid in workers))
    for pid, text in texts.items():
        for part, seconds in shares(text, spent[pid], each_s).items():
            key = f"{groups[pid]}.{part}"
            values[key] = values.get(key, 0.0) + seconds * microseconds
    values["total"] = sum(values.values())
    return values | {name: (end[name] - counted[name]) / flow.deliveries for name in end}


def _each_process(groups: Mapping[str, str]) -> CpuTimes:
    return machine.cpu_times({pid: [int(pid)] for pid in groups})


def _samples(folder: Path, pid: str) -> bytes:
    path = folder / pid
    return path.read_bytes() if path.exists() else b""


def _counters(stage: Stage) -> Mapping[str, int]:
    with stage.database.cursor() as server:
        server.execute("SHOW GLOBAL STATUS")
        return counters(dict(server.fetchall()))


def markdown(results: Sequence[Result]) -> str:
    """Return tables of the profile on MariaDB, medians over the runs; '' without one."""
    ours = [result for result in results if result.is_hookstation and result.database == "mariadb"]
    keys = dict.fromkeys(key for result in ours for key in result.values)
    values = {
        key.removeprefix("profile."): median(series(ours, key))
        for key in keys
        if key.startswith("profile.")
    }
    if not values:
        return ""
    total, database = values["total"], values["database"]
    parts = [
        (title, [values.get(f"{group}.{key}", 0.0) for group in GROUPS]) for key, title, _ in PARTS
    ]
    rows = [
        (title, *map(_us, costs), f"{sum(costs) / total:.0%}")
        for title, costs in sorted(parts, key=lambda part: -sum(part[1]))
        if sum(costs) >= MIN_US
    ]
    rows += [("database server", _us(database), "", f"{database / total:.0%}")]
    rows += [("all", _us(total), "", "")]
    head = ("CPU time of one delivered message goes into", *GROUPS, "share")
    counted = [
        (title, f"{values[name]:,.2f}") for name, title in COUNTERS.items() if name in values
    ]
    counter_head = ("The database server does for one delivered message", "")
    return "\n".join([*markdown_table(head, rows), "", *markdown_table(counter_head, counted)])


def _us(value: float) -> str:
    return f"{value:,.0f} µs" if value else ""


PROFILE = Scenario("profile", sample, on_sqlite=False, hookstation_only=True)
