"""Check whether there is disk space for messages, and whether a row can be written."""

import shutil
import threading
import time
from pathlib import Path
from typing import NamedTuple

from django.conf import settings
from django.db import Error as DatabaseFailure
from django.db import transaction

from channels_app.conf import conf
from channels_app.core.errors import StorageFull
from channels_app.database import raw
from channels_app.models import WriteProbe, new_id

POLL_S = 1.0
"""Maximum age, in seconds, of the free space that decides whether a message is accepted."""
PROBE_S = 2.0
"""Minimum seconds between two test writes of a process."""
STUCK_S = 5.0
"""A test write that takes longer than this, in seconds, counts as failed."""
ALARM = 4
"""Raise an alarm when free space is below this multiple of the reserve ..."""
LOW_BYTES = 1024**3
"""... or below this."""
FULL = "Nothing was stored: the broker's disk is full. Try again later."
ROW_BYTES = 16 * 1024
"""More than one page of any database: a smaller row could fit into a page with free space."""


class Room(NamedTuple):
    """The free space of one folder's file system."""

    folder: Path
    free: int
    """Bytes that this process may still write. When few are left, these include the free space
    within the database's files."""
    total: int

    @property
    def is_short(self) -> bool:
        """Whether less space is free than the reserve."""
        return self.free < conf().disk_reserve_bytes

    @property
    def is_low(self) -> bool:
        """Whether to raise an alarm."""
        return self.free < _low_bytes()

    @property
    def is_nearly_low(self) -> bool:
        """Whether to keep a raised alarm: the threshold is higher, so that it does not flap."""
        return self.free < _low_bytes() * 5 // 4


class Disks:
    """Free space where messages are stored, as far as this host can see it.

    This covers the data directory and the database's folder: that of an SQLite file, or the data
    directory of a server on this host. For a server on another host only its errors tell.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset to the initial state."""
        self._looked_at = float("-inf")
        self._short: Room | None = None
        self._folders: list[Path] | None = None
        self._database: Path | None = None

    def rooms(self) -> list[Room]:
        """The current free space of each.

        Raises what the database raises if it has to be queried.
        """
        if self._folders is None:
            folder = raw.dialect.folder()
            self._database = folder and _existing(folder)
            places = [self._database, _existing(Path(settings.DATA_DIR))]
            folders = [folder for folder in places if folder]
            self._folders = list(
                {folder.stat().st_dev: folder for folder in reversed(folders)}.values()
            )
        return [self._room(folder) for folder in self._folders]

    def _room(self, folder: Path) -> Room:
        usage = shutil.disk_usage(folder)
        room = Room(folder, usage.free, usage.total)
        if folder == self._database and room.is_nearly_low:
            # Asked for only when it matters: while there is room, checks need no query.
            room = room._replace(free=room.free + raw.dialect.reusable_bytes())
        return room

    def check(self) -> None:
        """Raise StorageFull while less than the reserve is free; checks once a second."""
        if not conf().disk_reserve_bytes:
            return
        ticks = time.monotonic()
        if ticks - self._looked_at > POLL_S:
            self._looked_at = ticks
            self._short = next((room for room in self.rooms() if room.is_short), None)
        if self._short is not None:
            raise StorageFull("storage_full", FULL)


disks = Disks()


class Probe:
    """Test whether a row can be written: write one and delete it.

    Threads share it. It commits its own transaction, since some databases report a full disk only
    at the commit.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Reset to the initial state."""
        self._began_at = self._ended_at = float("-inf")
        self._failure: DatabaseFailure | None = None

    def check(self) -> None:
        """Write a row, unless that was done recently. Raises what the last write raised."""
        if time.monotonic() - self._ended_at > PROBE_S:
            self._write()
        if self._failure is not None:
            raise self._failure

    def _write(self) -> None:
        if not self._lock.acquire(blocking=False):
            # Another request is writing. The last result holds, unless that write takes too long.
            if time.monotonic() - self._began_at > STUCK_S:
                raise DatabaseFailure(f"A row has waited more than {STUCK_S:.0f} s to be written.")
            return
        try:
            self._began_at = time.monotonic()
            try:
                _write_and_remove()
            except DatabaseFailure as failure:
                self._failure = failure.with_traceback(None)
            else:
                self._failure = None
            self._ended_at = time.monotonic()
        finally:
            self._lock.release()


probe = Probe()


def forget() -> None:
    """Reset what this process knows of its storage."""
    disks.forget()
    probe.forget()


def _low_bytes() -> int:
    return max(LOW_BYTES, ALARM * conf().disk_reserve_bytes)


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.exists())


def _write_and_remove() -> None:
    key = new_id()
    table = WriteProbe._meta.db_table
    with transaction.atomic():
        WriteProbe.objects.create(id=key, data=bytes(ROW_BYTES))
    raw.execute(f"DELETE FROM {table} WHERE id <= %s", [key])  # noqa: S608 (a name of ours)
