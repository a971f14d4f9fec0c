"""Announcement: a file that grows when configuration changed, so that this host looks at once.

A look costs one ``stat``. Other hosts, and a folder that cannot be written, rely on asking the
database (channels_app/directory.py).
"""

import os
from contextlib import suppress
from pathlib import Path

from channels_app.conf import conf

LARGEST = 1 << 20


class Announcement:
    """The file. It grows by a byte at a time: an mtime alone is too coarse to tell two changes."""

    @property
    def _path(self) -> Path:
        return conf().data_dir / "configuration-changed"

    def make(self) -> None:
        """Say that configuration changed."""
        with suppress(OSError), self._path.open("ab") as file:
            if file.tell() > LARGEST:
                file.truncate(0)
            file.write(b".")

    def mark(self) -> tuple[int, int]:
        """Something that differs after each announcement."""
        try:
            state = os.stat(self._path)
        except OSError:
            return 0, 0
        return state.st_size, state.st_mtime_ns


announcement = Announcement()
