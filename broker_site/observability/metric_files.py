"""Sum the metrics of all processes of an installation, including processes that have ended.

Each process keeps its counters in a file named after its process id. When it ends, the file must
stay, or its counts would disappear from the sum. So the files of ended processes move to another
folder and are merged there. Each step is one rename, so that a crash neither loses nor doubles
counts.
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

from delivery.processes.control import runs

log = logging.getLogger(__name__)

KEEP = 16
"""Number of files of ended processes above which they are merged."""
SUMMED = frozenset({"counter", "histogram", "summary"})
"""Metric types that count after their process has ended. Gauges do not."""


class Files(Collector):
    """Metrics of all processes, merged at scrape time."""

    def __init__(self, own: Path, other_folders: Sequence[Path] = ()) -> None:
        """``own`` is this host's folder, which is maintained here; the others are only read."""
        self._own = own
        self._other_folders = other_folders

    def collect(self) -> Iterator[Metric]:
        """All metrics of all processes, running or ended."""
        folders = sorted({self._own, *self._other_folders})
        with _locked(folders):
            _retire(self._own)
            paths = [path for folder in folders for path in _files(folder) if _is_sound(path)]
            names = [str(path) for path in paths]
            return iter(MultiProcessCollector.merge(names))


@contextmanager
def _locked(folders: Sequence[Path]) -> Iterator[None]:
    """Lock the folders in order, against deadlocks. The kernel releases locks of dead processes."""
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
            # Process ids are reused, so the name also contains the inode.
            path.replace(dead / f"{kind}_{path.stat().st_ino}_{pid}.db")
        else:
            path.unlink(missing_ok=True)
    paths = list(dead.glob("*.db"))
    if len(paths) > KEEP:
        _merge(paths, dead)


def _merge(paths: Sequence[Path], dead: Path) -> None:
    fresh = dead.with_name("dead.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for path in paths:
        if _is_sound(path):
            for key, value in _read(path):
                sums[path.stem.split("_")[0]][key] += value
    for kind, values in sums.items():
        _write(fresh / f"{kind}_0_0.db", values)
    # Swap in the finished folder; after a crash in between, the next scrape completes the swap.
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
    """Whether the file can be read: a process may have been killed while the file grew."""
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
