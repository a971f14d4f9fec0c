"""Read CPU time and memory of groups of processes from the kernel."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

Groups = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """CPU time of each process since its start."""

    seconds: Mapping[str, Mapping[int, float]]
    """Seconds by group and process id."""

    def has_all_of(self, earlier: "Snapshot") -> bool:
        """Whether no process has ended since, whose time would be missing."""
        return all(
            used.keys() <= self.seconds.get(group, {}).keys()
            for group, used in earlier.seconds.items()
        )

    def since(self, earlier: "Snapshot") -> dict[str, float]:
        """Return CPU seconds by group since then, without processes that ended in between."""
        return {
            group: sum(
                used - earlier.seconds.get(group, {}).get(pid, 0.0) for pid, used in now.items()
            )
            for group, now in self.seconds.items()
        }


def look(groups: Groups) -> Snapshot:
    """Return user and system time by group, of all threads including ended ones."""
    found: dict[str, dict[int, float]] = {}
    for group, pids in groups.items():
        found[group] = {}
        for pid in pids:
            with suppress(OSError):  # the process has ended
                # clock_getcpuclockid(3), since /proc/PID/stat has a resolution of 10 ms.
                found[group][pid] = time.clock_gettime((~pid << 3) | 2)
    return Snapshot(found)


def machine() -> float:
    """Return seconds in which cores were busy, or taken by the hypervisor, since boot."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, fields[:8])
    ticks = user + nice + system + interrupts + soft + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def harness() -> float:
    """Return CPU seconds of this process and of its ended children."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def memory(pids: Sequence[int]) -> int:
    """Return bytes that the processes use together, counting shared memory once (PSS)."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def peak(pids: Sequence[int]) -> int:
    """Return the sum of the processes' peak memory in bytes (VmHWM).

    The kernel maintains these values. For PSS it walks over all pages of a process, which waits
    meanwhile.
    """
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    total += int(line.split()[1]) * 1024
    return total


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process, parents first."""
    below: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                below += [child, *descendants(child)]
    return below


def title(pid: int) -> str:
    """Return the command line of a process; '' if it has ended."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return text.replace(b"\0", b" ").decode(errors="replace").strip()


def program(pid: int) -> str:
    """Return the name of a process's program; '' if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
