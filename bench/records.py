"""A log of fixed-size records in shared memory: one process appends, another reads along."""

import mmap
import os
import struct
import tempfile
from pathlib import Path
from typing import Self

RECORD = struct.Struct("<5Q")
COUNT = struct.Struct("<Q")
START = 64
CAPACITY = 4_000_000
"""Only what is written takes memory."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a file on disk would disturb the database's syncs

Record = tuple[int, int, int, int, int]


class Log:
    """Five numbers to a record. What they mean is for those who write and read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        (self._count,) = COUNT.unpack_from(self._memory)

    @classmethod
    def create(cls) -> Self:
        """An empty log; `remove` it when done."""
        folder = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        descriptor, name = tempfile.mkstemp(prefix="hookstation-bench-", dir=folder)
        os.ftruncate(descriptor, START + CAPACITY * RECORD.size)
        os.close(descriptor)
        return cls(Path(name))

    def append(self, record: Record) -> None:
        """Add one; readers see it once it is whole."""
        RECORD.pack_into(self._memory, START + self._count * RECORD.size, *record)
        self._count += 1
        COUNT.pack_into(self._memory, 0, self._count)

    def __len__(self) -> int:
        """How many there are by now."""
        (count,) = COUNT.unpack_from(self._memory)
        return int(count)

    def read(self, start: int = 0) -> list[Record]:
        """Those from the `start`-th on."""
        begin, end = START + start * RECORD.size, START + len(self) * RECORD.size
        return list(RECORD.iter_unpack(self._memory[begin:end]))

    def remove(self) -> None:
        """Let go of the memory."""
        self._memory.close()
        self.path.unlink(missing_ok=True)
