"""Layout of the archive's folder, and how files appear there whole or not at all.

    {lake}/{table}/day=2026-11-22/000000000017.parquet

A file's name is a function of its segment: whoever writes a segment anew replaces its file. It is
written in a folder that no reader of the tables looks into, and moved to its place when the ledger
says so. A folder that is not the archive's own is refused: a disk that is not mounted looks like an
empty archive, and two installations would replace each other's files.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path

STAGING = "_staging"
"""Folder of files that are not at their place (yet). Spark, pandas and others read every file below
a table's folder, whatever its name ends in."""
MARK = "_hookstation"
"""A file in the folder, by which it is known again."""
ASIDE = ".tmp"
TABLES = ("deliveries", "attempts", "messages")
HASHED_BYTES = 1 << 20


class Unusable(Exception):
    """The folder cannot be used; the message says why."""


def path_of(table: str, day: date, segment: int) -> str:
    """A file's place below the folder."""
    return f"{table}/day={day.isoformat()}/{segment:012d}.parquet"


def aside(path: str, run_id: int, ending: str = ASIDE) -> str:
    """Where a run writes the file first."""
    table, name = path.split("/")[0], path.rpartition("/")[2]
    return f"{STAGING}/{table}-{name}.{run_id}{ending}"


def claim(lake: Path, *, is_used: bool) -> None:
    """Make sure that this is the folder that the ledger means. Raises Unusable.

    ``is_used``: whether the ledger knows files in it. Without any, a folder that has none is taken.
    """
    mark = lake / MARK
    try:
        if is_used:
            if not mark.is_file():
                raise Unusable(
                    f"{lake} is not the folder that the archive is in: {MARK} is missing there. "
                    "Is the disk mounted?"
                )
            return
        if any(next(lake.glob(f"{table}/*/*.parquet"), None) for table in TABLES):
            raise Unusable(
                f"{lake} has files of another archive, of which this database knows nothing: "
                "set HOOKSTATION_LAKE to a folder of its own."
            )
        lake.mkdir(parents=True, exist_ok=True)
        mark.write_text("The archive of a Hookstation: docs/pipeline.md says what is in it.\n")
        _settle(lake, lake.parent)
    except OSError as error:
        raise Unusable(f"{lake} cannot be used: {error.strerror}.") from None


def publish(lake: Path, path: str, tmp: str) -> bool:
    """Move a written file to its place; False when it is not there (any more)."""
    try:
        if tmp.startswith(f"{STAGING}/") and (lake / tmp).exists():
            (lake / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(lake / tmp, lake / path)
    except FileNotFoundError:
        return False
    _settle(*list((lake / path).parents)[:3])
    return True


def remove(lake: Path, path: str) -> None:
    """Delete a file, if it is there."""
    with suppress(FileNotFoundError):
        (lake / path).unlink()
        _settle((lake / path).parent)


def _settle(*folders: Path) -> None:
    """Have what happened to the names in folders survive a power cut."""
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def written_aside(lake: Path, days: Iterable[date]) -> Iterator[str]:
    """Unfinished files: all that are staged, and those that older versions left on these days."""
    for path in (lake / STAGING).glob(f"*{ASIDE}"):
        yield str(path.relative_to(lake))
    for day in days:
        for table in TABLES:
            for path in (lake / table / f"day={day.isoformat()}").glob(f"*{ASIDE}"):
                yield str(path.relative_to(lake))


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(HASHED_BYTES):
            digest.update(part)
    return digest.hexdigest()
