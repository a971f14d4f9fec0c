"""Measure one command: duration, memory of its processes, CPU time of the database."""

import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import cpu
from bench.adapters import BenchError
from bench.databases import ROOT

POLL_S = 0.5
JVM = "java"


@dataclass(slots=True)
class Cost:
    """Cost of one command from start to end."""

    seconds: float = 0.0
    database_cpu_s: float = 0.0
    """User and system time of the database server."""
    driver_bytes: int = 0
    """Peak memory of the command's own process."""
    jvm_bytes: int = 0
    """Peak memory of its Java: Spark's driver, and in local mode its executors too."""
    workers_bytes: int = 0
    """Peak memory of all other child processes, shared memory counted once (PSS): Spark's Python
    workers."""
    cpu_s: dict[int, float] = field(default_factory=dict)
    """User and system time by process, at the last look before its end."""


def run(command: Sequence[str], environment: Mapping[str, str], server: Sequence[int]) -> Cost:
    """Run a command to its end. ``server`` are the database's processes.

    Raises BenchError with its last line when it fails.
    """
    cost, before = Cost(), cpu.look({"server": server})
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True
        )
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, cost, done), daemon=True)
        watcher.start()
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            done.set()
            watcher.join()
        cost.seconds = time.monotonic() - start
        output.seek(0)
        lines = output.read().splitlines()
    cost.database_cpu_s = cpu.look({"server": server}).since(before)["server"]
    if code:
        name = " ".join(Path(word).name for word in command[1:4])
        raise BenchError(f"{name} ended with {code}: {' '.join(lines[-1:])}")
    return cost


def _watch(pid: int, cost: Cost, done: threading.Event) -> None:
    while not done.wait(POLL_S):
        below = cpu.descendants(pid)
        cost.cpu_s |= cpu.look({"all": [pid, *below]}).seconds["all"]
        java = [one for one in below if cpu.program(one) == JVM]
        others = [one for one in below if one not in java]
        cost.driver_bytes = max(cost.driver_bytes, cpu.peak([pid]))
        cost.jvm_bytes = max(cost.jvm_bytes, cpu.peak(java))
        cost.workers_bytes = max(cost.workers_bytes, cpu.memory(others))
