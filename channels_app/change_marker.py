"""Tell the processes of this host that configuration changed, through a file that they watch.

One check costs one ``stat``. Processes on other hosts, and all processes if the data directory is
not writable, poll the database instead (channels_app/registry/cache.py).
"""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from django.conf import settings

MAX_FILE_BYTES = 1 << 20


class ChangeMarker:
    """The file.

    Each change appends a byte: two changes can have the same mtime, but not one size.
    """

    @property
    def _path(self) -> str:
        return _path(settings.DATA_DIR)

    def make(self) -> None:
        """Announce that configuration changed."""
        with suppress(OSError), open(self._path, "ab") as file:
            if file.tell() > MAX_FILE_BYTES:
                file.truncate(0)
            file.write(b".")

    def mark(self) -> tuple[int, int]:
        """A value that differs after each change."""
        try:
            state = os.stat(self._path)
        except OSError:
            return 0, 0
        return state.st_size, state.st_mtime_ns


@cache
def _path(folder: Path) -> str:
    # Called twice per request, so the path is built once.
    return str(folder / "configuration-changed")


change_marker = ChangeMarker()
