"""The machine that was measured on: what a reader needs to compare numbers."""

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

SYNCS = 200
BLOCK = b"x" * 4096


@dataclass(frozen=True, slots=True)
class Machine:
    """What it is, and how busy it was when the measurement began."""

    processor: str
    cores: int
    memory_gib: float
    system: str
    python: str
    fdatasync_us: float
    """Median of writing and syncing 4 KiB to a file in the folder for temporary files."""
    load: float
    """Processes that wanted to run, on average over the last minute."""

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.processor}, {self.cores} cores, {self.memory_gib:.0f} GiB; {self.system}; "
            f"Python {self.python}",
            f"fdatasync of 4 KiB: {self.fdatasync_us:.0f} µs; load average before: {self.load:.1f}",
        ]


def describe(folder: Path) -> Machine:
    """Look at this machine; `folder` is where databases are kept."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        fdatasync_us=_fdatasync_us(folder),
        load=os.getloadavg()[0],
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


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
