"""Describe the machine, and read CPU time and memory of processes from the kernel."""

import os
import platform
import time
import timeit
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

SYNCS, BLOCK = 200, b"x" * 4096
CALLS, REPEATS = 1_000_000, 5

Groups = Mapping[str, Sequence[int]]
"""Process ids by the name of a group."""


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
        call = f", {self.call_ns:.0f} ns for a call of a small function" if self.call_ns else ""
        return [
            f"{self.processor}, {self.cores} cores, {self.memory_gib:.0f} GiB; {self.system}; "
            f"Python {self.python}{call}",
            f"fdatasync of 4 KiB: {self.fdatasync_us:.0f} µs; load average before: {self.load:.1f}",
        ]


def describe(folder: Path) -> Machine:
    """Describe this machine; `folder` is where databases are stored."""
    function = "def function(number): return number + 1"
    calls_s = timeit.repeat("function(1)", function, number=CALLS, repeat=REPEATS)
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=memory_bytes() / 2**30,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        fdatasync_us=_fdatasync_us(folder),
        load=os.getloadavg()[0],
        call_ns=min(calls_s) / CALLS * 1e9,
    )


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """User and system time of processes since their start."""

    seconds: Mapping[str, Mapping[int, float]]
    """Seconds by group and process id."""

    def has_all_of(self, earlier: "CpuTimes") -> bool:
        """Whether no process has ended since, whose time would be missing."""
        return all(
            used.keys() <= self.seconds.get(group, {}).keys()
            for group, used in earlier.seconds.items()
        )

    def since(self, earlier: "CpuTimes") -> dict[str, float]:
        """Return CPU seconds by group since then, without processes that ended in between."""
        return {
            group: sum(
                used - earlier.seconds.get(group, {}).get(pid, 0.0) for pid, used in now.items()
            )
            for group, now in self.seconds.items()
        }


def cpu_times(groups: Groups) -> CpuTimes:
    """Return user and system time by group, of all threads including ended ones."""
    found: dict[str, dict[int, float]] = {group: {} for group in groups}
    for group, pids in groups.items():
        for pid in pids:
            with suppress(OSError):  # the process has ended
                # clock_getcpuclockid(3), since /proc/PID/stat has a resolution of 10 ms.
                found[group][pid] = time.clock_gettime((~pid << 3) | 2)
    return CpuTimes(found)


def machine_cpu_s() -> float:
    """Return seconds in which cores were busy, or taken by the hypervisor, since boot."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, fields[:8])
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


def harness_cpu_s() -> float:
    """Return CPU seconds of this process and of its ended children."""
    return sum(os.times()[:4])


def memory(pids: Sequence[int]) -> int:
    """Return bytes that the processes use together, counting shared memory once (PSS)."""
    return sum(_kib(pid, "smaps_rollup", "Pss:") for pid in pids) * 1024


def peak_memory(pids: Sequence[int]) -> int:
    """Return the sum of the processes' peak memory in bytes (VmHWM).

    The kernel maintains these values. For PSS it walks over all pages of a process, which waits
    meanwhile.
    """
    return sum(_kib(pid, "status", "VmHWM:") for pid in pids) * 1024


def _kib(pid: int, file: str, name: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0


def descendants(pid: int) -> list[int]:
    below: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                below += [child, *descendants(child)]
    return below


def command_line(pid: int) -> str:
    """Return the command line of a process; '' if it has ended."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
        return text.replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def program(pid: int) -> str:
    """Return the name of a process's program; '' if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
