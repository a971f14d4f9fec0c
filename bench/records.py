"""Provide a log of fixed-size records in shared memory, for one writer and one reader."""

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
"""Records reserved; only written ones take memory."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a file on disk would disturb the database's syncs

Record = tuple[int, int, int, int, int]


class Log:
    """Records of five numbers; writer and reader define their meaning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        (self._count,) = COUNT.unpack_from(self._memory)

    @classmethod
    def create(cls) -> Self:
        """Create an empty log; `remove` it when done."""
        folder = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        descriptor, name = tempfile.mkstemp(prefix="hookstation-bench-", dir=folder)
        os.ftruncate(descriptor, START + CAPACITY * RECORD.size)
        os.close(descriptor)
        return cls(Path(name))

    def append(self, record: Record) -> None:
        """Append a record; readers see it once it is complete."""
        RECORD.pack_into(self._memory, START + self._count * RECORD.size, *record)
        self._count += 1
        COUNT.pack_into(self._memory, 0, self._count)

    def __len__(self) -> int:
        """Number of records."""
        (count,) = COUNT.unpack_from(self._memory)
        return int(count)

    def read(self, start: int = 0) -> list[Record]:
        """Return the records from index `start` on."""
        begin, end = START + start * RECORD.size, START + len(self) * RECORD.size
        return list(RECORD.iter_unpack(self._memory[begin:end]))

    def remove(self) -> None:
        """Release the memory."""
        self._memory.close()
        self.path.unlink(missing_ok=True)
