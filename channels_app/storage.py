"""Storage: whether there is room for messages, and whether a row can be written."""

import re
import shutil
import socket
import sqlite3
import threading
import time
from pathlib import Path
from typing import NamedTuple

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db import Error as DatabaseFailure

from channels_app.conf import conf
from channels_app.errors import StorageFull
from channels_app.models import WriteProbe, new_id, raw

POLL_S = 1.0
"""How old the free space may be by which a message is accepted."""
PROBE_S = 2.0
"""How often a process writes a row to find out whether it can, however often it is asked."""
STUCK_S = 5.0
"""A write that waits for longer counts as one that failed."""
ALARM = 4
"""An alarm is raised when less than so many times the reserve is free."""
LOW_BYTES = 1024**3
"""An alarm is raised below this in any case."""

# MySQL: disk full, table full; and those that quote the operating system's error 28 (ENOSPC).
_FULL = {1021, 1114}
_QUOTING = {3, 28, 1026, 1030}
_NO_SPACE = re.compile(r"\b28\b")


def is_full(error: BaseException) -> bool:
    """Whether the database refused a write because there is no room."""
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    if not isinstance(error, DatabaseError) or not error.args:
        return False
    code = error.args[0]
    return code in _FULL or (code in _QUOTING and bool(_NO_SPACE.search(str(error))))


class Room(NamedTuple):
    """The file system of one folder."""

    folder: Path
    free: int
    """Bytes that this process may still write."""
    total: int

    @property
    def is_short(self) -> bool:
        """Whether less is free than is kept in reserve."""
        return self.free < conf().disk_reserve_bytes

    @property
    def is_low(self) -> bool:
        """Whether it is time for an alarm."""
        return self.free < _low_bytes()

    @property
    def is_nearly_low(self) -> bool:
        """Whether an alarm that was raised still stands: one that wavers is told of once."""
        return self.free < _low_bytes() * 5 // 4


def _low_bytes() -> int:
    return max(LOW_BYTES, ALARM * conf().disk_reserve_bytes)


class Disks:
    """Free space where messages go, as far as this host can see it.

    That is the data folder and the database's: the folder of an SQLite file, or the data folder of
    a server that runs on this host. Of a server elsewhere only its errors tell.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Know nothing, as at the start."""
        self._looked_at = float("-inf")
        self._short: Room | None = None
        self._folders: list[Path] | None = None

    def rooms(self) -> list[Room]:
        """Each of them now. Raises what the database raises when it has to be asked where it is."""
        if self._folders is None:
            folders = [_existing(it) for it in (*_database_folder(), Path(settings.DATA_DIR))]
            self._folders = list({it.stat().st_dev: it for it in reversed(folders)}.values())
        usages = [(folder, shutil.disk_usage(folder)) for folder in self._folders]
        return [Room(folder, usage.free, usage.total) for folder, usage in usages]

    def check(self) -> None:
        """Raise StorageFull while less is free than is kept in reserve; looks once a second."""
        if not conf().disk_reserve_bytes:
            return
        ticks = time.monotonic()
        if ticks - self._looked_at > POLL_S:
            self._looked_at = ticks
            self._short = next((room for room in self.rooms() if room.is_short), None)
        if self._short is not None:
            raise StorageFull("storage_full", FULL)


FULL = "Nothing was stored: the broker's disk is full. Try again later."
disks = Disks()


class Probe:
    """Whether a row can be written: it writes one and takes it back.

    Threads share it. Its own transaction is committed, since some databases say only then that
    there is no room.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Know nothing, as at the start."""
        self._began_at = self._ended_at = float("-inf")
        self._failure: DatabaseFailure | None = None

    def check(self) -> None:
        """Write one, unless one was written a moment ago. Raises what the last write raised."""
        if time.monotonic() - self._ended_at > PROBE_S:
            self._write()
        if self._failure is not None:
            raise self._failure

    def _write(self) -> None:
        if not self._lock.acquire(blocking=False):
            # Another request writes. What the last one came to holds until that takes too long.
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
    """Have this process know nothing of its storage, as at the start."""
    disks.forget()
    probe.forget()


ROW_BYTES = 16 * 1024
"""More than one page of any database: a row that fits into a page would be written without room."""


def _write_and_remove() -> None:
    key = new_id()
    table = WriteProbe._meta.db_table
    with transaction.atomic():
        WriteProbe.objects.create(id=key, data=bytes(ROW_BYTES))
    raw.execute(f"DELETE FROM {table} WHERE id <= %s", [key])  # noqa: S608 (a name of ours)


def _database_folder() -> list[Path]:
    """Of the database's files, where this host can see them."""
    if connection.vendor == "sqlite":
        name = str(connection.settings_dict["NAME"])
        return [] if "memory" in name else [Path(name).parent]
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@hostname, @@datadir")
        host, folder = cursor.fetchone()
    # A server in a container has another name, and its folder is another one of the same path.
    is_here = host == socket.gethostname() and Path(folder).is_dir()
    return [Path(folder)] if is_here else []


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.exists())
