"""Attribute the CPU time of one delivered message to parts of the code, from stack samples."""

import linecache
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from bench.inject.sitecustomize import INTERVAL_S
from bench.results import Result, series

GROUPS = ("web", "worker")
LEAST_US = 0.5
"""Microseconds below which a part has no line."""
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
"""Counters of the server with their meaning. Handler_read is the sum of all with that prefix."""


def counters(status: Mapping[str, str]) -> dict[str, int]:
    """Select these counters from a server's status."""
    found = {name: int(status[name]) for name in COUNTERS if name in status}
    reads = [int(value) for name, value in status.items() if name.startswith("Handler_read_")]
    return found | {"Handler_read": sum(reads)}


def room(stack: str) -> str:
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
    """Return the stacks that one process wrote."""
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
    looks = Counter(map(room, samples(text)))
    found = {key: count * each_s for key, count in looks.items()}
    if (left := cpu_s - sum(found.values())) > 0:
        found[UNSEEN] = found.get(UNSEEN, 0.0) + left
    return found


def markdown(results: Sequence[Result]) -> str:
    """Return tables of the profile on MariaDB, medians over the runs; '' without one."""
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
