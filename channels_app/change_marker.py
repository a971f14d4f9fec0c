"""Change marker: a file that grows with each change of configuration; processes watch it.

A look costs one ``stat``. Other hosts, and a folder that cannot be written, rely on asking the
database (channels_app/config_cache.py).
"""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from channels_app.conf import conf

MAX_VERSION = 1 << 20


class ChangeMarker:
    """The file. It grows by a byte at a time: an mtime alone is too coarse to tell two changes."""

    @property
    def _path(self) -> str:
        return _path(conf().data_dir)

    def make(self) -> None:
        """Say that configuration changed."""
        with suppress(OSError), open(self._path, "ab") as file:
            if file.tell() > MAX_VERSION:
                file.truncate(0)
            file.write(b".")

    def mark(self) -> tuple[int, int]:
        """Something that differs after each change."""
        try:
            state = os.stat(self._path)
        except OSError:
            return 0, 0
        return state.st_size, state.st_mtime_ns


@cache
def _path(folder: Path) -> str:
    # Looked at twice in each request: paths are put together once.
    return str(folder / "configuration-changed")


change_marker = ChangeMarker()
