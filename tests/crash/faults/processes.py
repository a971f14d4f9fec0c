"""Measurements of a broker's processes while something fails."""

import os
import re
import time
from pathlib import Path

from tests.crash.traffic import RECOVERY_S, Traffic
from tests.support.broker import Broker, descendants, title, wait_until

LINES_PER_S = 12
"""Log lines that all processes may write per second of an outage, whatever the number of refusals.
A traceback counts as one line: django-q2 writes one every ten seconds."""
CPU_SHARE = 0.6
"""The share of a core that all processes together may use above the usual load. A loop without a
pause uses a whole core."""
USUAL_S, CALM_S = 2.0, 3.0
"""How long is measured without and with a fault. Seconds."""
RESTARTING = ("pusher", "monitor")
"""Processes of django-q2 that end with an error of the database; the cluster restarts them."""
_LINE = re.compile(r"^\d{4}-\d\d-\d\d ", re.MULTILINE)
_TICKS = os.sysconf("SC_CLK_TCK")


def usual_cpu(broker: Broker, name: str) -> float:
    """The share of a core that traffic needs on this machine without a fault."""
    with Traffic(broker, name=name) as traffic:
        traffic.flows()
        cpu, began = _cpu_s(broker), time.monotonic()
        time.sleep(USUAL_S)
        return (_cpu_s(broker) - cpu) / (time.monotonic() - began)


def stays_calm(broker: Broker, usual: float = 0.0) -> None:
    """Check for a while that no process floods the log or runs in a busy loop.

    ``usual`` is the share of a core that continuing traffic needs.
    """
    began, lines, cpu = time.monotonic(), _lines(broker), _cpu_s(broker)
    time.sleep(CALM_S)
    seconds = time.monotonic() - began
    written = _lines(broker) - lines
    used = _cpu_s(broker) - cpu
    assert written <= LINES_PER_S * (seconds + 1), broker.log()[-5000:]
    told = f"{used:.1f} s of {seconds:.1f} s, {usual:.2f} of a core before"
    assert used <= (usual + CPU_SHARE) * seconds, told


def processes(broker: Broker) -> dict[int, str]:
    """Titles of the broker's living processes by id, except those of RESTARTING.

    A fork starts with its parent's title, so this waits until these have set their own.
    """
    assert broker.process is not None
    owner = broker.process.pid

    found: dict[int, str] = {}

    def has_restarting() -> bool:
        found.clear()
        found.update({pid: text for pid in (owner, *descendants(owner)) if (text := title(pid))})
        return all(any(one in text for text in found.values()) for one in RESTARTING)

    wait_until(has_restarting, RECOVERY_S, "no pusher or no monitor", broker.log)
    return {pid: text for pid, text in found.items() if not any(one in text for one in RESTARTING)}


def check_same_processes(broker: Broker, before: dict[int, str]) -> None:
    """Check that no process ended since ``before``. A failure shows their titles."""
    now = processes(broker)
    assert now.keys() == before.keys(), (before, now, broker.log()[-5000:])


def open_files(broker: Broker) -> dict[int, int]:
    """How many file descriptors each process has open."""
    return {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in processes(broker)}


def _lines(broker: Broker) -> int:
    return len(_LINE.findall(broker.log()))


def _cpu_s(broker: Broker) -> float:
    return sum(map(_of_process, processes(broker)))


def _of_process(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS
