"""Metric files: how the processes of an installation add their numbers up, the dead included.

Each process keeps its counters in a file named after its number. When it dies the file must stay,
or its counts would vanish from the sum; so the files of dead processes move to a folder of their
own and are merged there. Every step is one rename, so that a crash neither loses nor doubles.
"""

import fcntl
import json
import logging
import shutil
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from delivery.runtime.processes import runs

log = logging.getLogger(__name__)

KEEP = 16
"""Files of dead processes that are left as they are before they are merged."""
SUMMED = frozenset({"counter", "histogram", "summary"})
"""Kinds whose dead files still count. A gauge of a dead process says nothing any more."""


class Files(Collector):
    """What all processes counted, merged at scrape time."""

    def __init__(self, own: Path, others: Sequence[Path] = ()) -> None:
        """``own`` is this host's folder, looked after here; ``others`` are only read."""
        self._own = own
        self._others = others

    def collect(self) -> Iterator[Metric]:
        """Every metric of every process, living or dead."""
        folders = sorted({self._own, *self._others})
        with _locked(folders):
            _retire(self._own)
            paths = [path for folder in folders for path in _files(folder) if _is_sound(path)]
            names = [str(path) for path in paths]
            return iter(MultiProcessCollector.merge(names))


@contextmanager
def _locked(folders: Sequence[Path]) -> Iterator[None]:
    """One scrape at a time; a lock goes with its holder. In order, so that two cannot deadlock."""
    with ExitStack() as stack:
        for folder in folders:
            handle = stack.enter_context((folder / "lock").open("a"))
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _files(folder: Path) -> list[Path]:
    return [*folder.glob("*.db"), *(folder / "dead").glob("*.db")]


def _retire(folder: Path) -> None:
    dead = folder / "dead"
    _finish_swap(dead)
    dead.mkdir(exist_ok=True)
    for path in folder.glob("*.db"):
        kind, pid = path.stem.split("_")[0], path.stem.split("_")[-1]
        if not pid.isdecimal() or runs(int(pid)):
            continue
        if kind in SUMMED:
            # Numbers are used again: two dead processes may have had the same one.
            path.replace(dead / f"{kind}_{path.stat().st_ino}_{pid}.db")
        else:
            path.unlink(missing_ok=True)
    found = list(dead.glob("*.db"))
    if len(found) > KEEP:
        _merge(found, dead)


def _merge(found: Sequence[Path], dead: Path) -> None:
    fresh = dead.with_name("dead.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for path in found:
        if _is_sound(path):
            for key, value in _read(path):
                sums[path.stem.split("_")[0]][key] += value
    for kind, values in sums.items():
        _write(fresh / f"{kind}_0_0.db", values)
    # The finished folder takes the other's place; whoever finds it half done goes on from there.
    (fresh / "complete").touch()
    _finish_swap(dead)


def _finish_swap(dead: Path) -> None:
    fresh, old = dead.with_name("dead.new"), dead.with_name("dead.old")
    if (fresh / "complete").exists():
        if dead.exists():
            shutil.rmtree(old, ignore_errors=True)
            dead.rename(old)
        fresh.rename(dead)
    (dead / "complete").unlink(missing_ok=True)
    shutil.rmtree(old, ignore_errors=True)


def _is_sound(path: Path) -> bool:
    """Whether the file can be read: a process may have been killed while it grew."""
    try:
        for key, _ in _read(path):
            json.loads(key)
    except (OSError, RuntimeError, ValueError, struct.error) as error:
        log.warning("metrics in %s cannot be read and are omitted: %s", path, error)
        return False
    return True


def _read(path: Path) -> Iterator[tuple[str, float]]:
    values = MmapedDict.read_all_values_from_file(path)
    return ((key, value) for key, value, _, _ in values)


def _write(path: Path, values: Mapping[str, float]) -> None:
    file = MmapedDict(str(path))
    for key, value in values.items():
        file.write_value(key, value, 0.0)
    file.close()
