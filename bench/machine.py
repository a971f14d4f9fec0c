"""Describe the machine of a measurement, so that readers can compare numbers."""

import os
import platform
import time
import timeit
from dataclasses import dataclass
from pathlib import Path
from statistics import median

SYNCS = 200
CALLS, REPEATS = 1_000_000, 5
BLOCK = b"x" * 4096


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, and its load at the beginning of the measurement."""

    processor: str
    cores: int
    memory_gib: float
    system: str
    python: str
    fdatasync_us: float
    """Median microseconds for writing and syncing 4 KiB in the folder for temporary files."""
    load: float
    """Average number of runnable processes in the last minute."""
    call_ns: float = 0.0
    """Nanoseconds of a small Python function call, for the present speed of a core. 0: unknown."""

    def lines(self) -> list[str]:
        """Return lines for people."""
        call = f", {self.call_ns:.0f} ns for a call of a small function" if self.call_ns else ""
        return [
            f"{self.processor}, {self.cores} cores, {self.memory_gib:.0f} GiB; {self.system}; "
            f"Python {self.python}{call}",
            f"fdatasync of 4 KiB: {self.fdatasync_us:.0f} µs; load average before: {self.load:.1f}",
        ]


def describe(folder: Path) -> Machine:
    """Describe this machine; `folder` is where databases are stored."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        fdatasync_us=_fdatasync_us(folder),
        load=os.getloadavg()[0],
        call_ns=_call_ns(),
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _call_ns() -> float:
    function = "def function(number): return number + 1"
    return min(timeit.repeat("function(1)", function, number=CALLS, repeat=REPEATS)) / CALLS * 1e9


def _fdatasync_us(folder: Path) -> float:
    path, costs = folder / "fdatasync", []
    with path.open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            start = time.perf_counter()
            file.write(BLOCK)
            os.fdatasync(file.fileno())
            costs.append((time.perf_counter() - start) * 1e6)
    path.unlink()
    return median(costs)
