"""Cut deletions into transactions that need little new disk space.

A database writes what it deletes once more before the space is free: SQLite overwrites each deleted
page and logs it, InnoDB keeps undo and redo logs. On a full disk only a small transaction succeeds.
"""

from collections.abc import Iterable, Iterator

from channels_app.database.raw import dialect

MAX_BYTES = 2 * 1024 * 1024
"""Bytes of bodies and responses that one transaction deletes, unless a single row has more. The log
of SQLite also holds up to 4 MiB that others wrote since its last checkpoint, so a deletion needs
about 6 MiB of the reserve."""


def cut(sizes: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield ids that are deleted together, in order; ``sizes`` are ids with bytes.

    After a full slice the log is written to the database, so that the next slice reuses it.
    """
    part: list[int] = []
    total = 0
    for key, size in sizes:
        if part and total + size > MAX_BYTES:
            yield part
            dialect.checkpoint()
            part, total = [], 0
        part.append(key)
        total += size
    if part:
        yield part
