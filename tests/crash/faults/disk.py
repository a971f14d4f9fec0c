"""A disk that tests can fill."""

import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash.faults.processes import processes
from tests.support.broker import Broker

SIZE_MB = 48
BLOCK = 1 << 12


class Disk:
    """A file system of 48 MB, where these tests may mount one.

    Elsewhere it is a folder with a limit on file sizes, and the errors are "file too large" instead
    of "no space left".
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        options = ("-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", str(folder))
        self._is_mounted = _succeeds("mount", *options)

    def close(self) -> None:
        """Unmount the file system, which discards its files."""
        if self._is_mounted:
            _succeeds("umount", "--lazy", str(self.folder))

    @property
    def is_small(self) -> bool:
        """Whether it is a file system of its own."""
        return self._is_mounted

    @contextmanager
    def nearly_full(self, left: int) -> Iterator[None]:
        """Leave at most ``left`` bytes free inside the block; needs a mounted file system."""
        filler = self.folder / "filler"
        try:
            with filler.open("wb", buffering=0) as file:
                file.write(b"\0" * max(0, shutil.disk_usage(self.folder).free - left))
            yield
        finally:
            filler.unlink()

    @contextmanager
    def full(self, broker: Broker) -> Iterator[None]:
        """Let no file grow inside the block."""
        with self._filled() if self._is_mounted else self._limited(broker):
            yield

    @contextmanager
    def _filled(self) -> Iterator[None]:
        filler = self.folder / "filler"
        try:
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"\0" * BLOCK)
                except OSError:
                    pass
            yield
        finally:
            filler.unlink()

    @contextmanager
    def _limited(self, broker: Broker) -> Iterator[None]:
        sizes = [path.stat().st_size for path in self.folder.glob("broker.sqlite3*")]
        everybody = processes(broker)
        try:
            for pid in everybody:
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (max(sizes), hard))
            yield
        finally:
            for pid in everybody:
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False
