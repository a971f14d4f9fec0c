"""Classify the broker's processes, measure each kind, and kill one at random."""

import os
import random
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import cpu

WEIGHTS: Mapping[str, int] = {
    "pump": 6,
    "web process": 5,
    "maintenance": 3,
    "worker": 2,
    "web": 1,
    "cluster": 1,
    "reaper": 1,
    "supervisor": 1,
}
"""Relative frequency with which each kind is killed."""


def kind(title: str) -> str:
    """Return the kind of a process by its command line."""
    if "granian" in title:
        return "web process" if title.endswith(tuple("0123456789")) else "web"
    if "qcluster" in title:
        last = title.rpartition(" ")[2]
        return last if last in {"pump", "maintenance"} else "worker"
    if "reaper" in title:
        return "reaper"
    return "cluster" if "manage.py worker" in title else "supervisor"


def look(supervisor: int) -> dict[str, list[int]]:
    """Return the present process ids by kind."""
    found: dict[str, list[int]] = {}
    for pid in (supervisor, *cpu.descendants(supervisor)):
        if title := cpu.title(pid):
            found.setdefault(kind(title), []).append(pid)
    return found


def kill_one(found: Mapping[str, Sequence[int]], chance: random.Random) -> str | None:
    """Send SIGKILL to a process of a random kind; returns the kind."""
    kinds = sorted(found.keys() & WEIGHTS.keys())
    if not kinds:
        return None
    (chosen,) = chance.choices(kinds, [WEIGHTS[kind] for kind in kinds])
    with suppress(ProcessLookupError):
        os.kill(chance.choice(sorted(found[chosen])), signal.SIGKILL)
    return chosen


@dataclass(slots=True)
class Growth:
    """Memory and open files of each kind over time."""

    looks: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    """By kind: medians of MiB and of descriptors per process, at each look."""

    def note(self, found: Mapping[str, Sequence[int]]) -> None:
        """Add a measurement."""
        for kind, pids in found.items():
            files = [count for pid in pids if (count := _files(pid))]
            if files:
                memory = median(cpu.memory([pid]) / 2**20 for pid in pids)
                self.looks[kind].append((memory, int(median(files))))

    def quarters(self, kind: str) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return medians of memory and files in the first and in the last quarter."""
        looks = self.looks[kind]
        part = max(1, len(looks) // 4)
        return _medians(looks[:part]), _medians(looks[-part:])


def _medians(looks: Iterable[tuple[float, int]]) -> tuple[float, float]:
    memory, files = zip(*looks, strict=True)
    return median(memory), median(files)


def _files(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0
