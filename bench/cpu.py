"""CPU time and memory of groups of processes, as the kernel counts them."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

Groups = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What each process has used since it started."""

    seconds: Mapping[str, Mapping[int, float]]
    """By group and process id."""

    def has_all_of(self, earlier: "Snapshot") -> bool:
        """Whether no process has ended since, whose time would be missing."""
        return all(
            used.keys() <= self.seconds.get(group, {}).keys()
            for group, used in earlier.seconds.items()
        )

    def since(self, earlier: "Snapshot") -> dict[str, float]:
        """CPU seconds by group between two looks. A process that ended in between is left out."""
        return {
            group: sum(
                used - earlier.seconds.get(group, {}).get(pid, 0.0) for pid, used in now.items()
            )
            for group, now in self.seconds.items()
        }


def look(groups: Groups) -> Snapshot:
    """User and system time of all threads, living and ended, by group."""
    found: dict[str, dict[int, float]] = {}
    for group, pids in groups.items():
        found[group] = {}
        for pid in pids:
            with suppress(OSError):  # it has ended
                # clock_getcpuclockid(3): /proc/PID/stat says the same in steps of 10 ms only.
                found[group][pid] = time.clock_gettime((~pid << 3) | 2)
    return Snapshot(found)


def machine() -> float:
    """Seconds that all cores together were busy since the start, or were kept from us."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, fields[:8])
    ticks = user + nice + system + interrupts + soft + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def harness() -> float:
    """Seconds of this process and of its children that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def memory(pids: Sequence[int]) -> int:
    """Bytes that the processes use together; what they share is counted once (PSS)."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def peak(pids: Sequence[int]) -> int:
    """Most bytes that the processes have had in memory so far, each by itself (VmHWM).

    The kernel keeps these: unlike PSS, for which it walks over all pages of a process, and lets it
    wait meanwhile.
    """
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    total += int(line.split()[1]) * 1024
    return total


def descendants(pid: int) -> list[int]:
    """Every process below one, parents first."""
    below: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                below += [child, *descendants(child)]
    return below


def title(pid: int) -> str:
    """The command line of a process; empty when it has ended."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return text.replace(b"\0", b" ").decode(errors="replace").strip()


def program(pid: int) -> str:
    """Name of the program that a process runs; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
