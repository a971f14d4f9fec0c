"""Lay out the archive's folder, where files appear atomically.

    {lake}/{table}/day=2026-11-22/000000000017.parquet

The name of a file derives from its segment, so exporting a segment again replaces its file. A file
is written in a folder that readers of the tables ignore, and moved to its place when the ledger has
recorded it. A folder of another archive is refused: an unmounted disk looks like an empty archive,
and two installations would replace each other's files.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path

STAGING = "_staging"
"""Folder of files that are not at their place (yet). Spark, pandas and others read every file
below a table's folder, whatever its extension."""
MARKER = "_hookstation"
"""A file that identifies the folder."""
UNFINISHED_SUFFIX = ".tmp"
TABLES = ("deliveries", "attempts", "messages")
HASH_CHUNK_BYTES = 1 << 20


class LakeError(Exception):
    """The folder cannot be used; the message gives the reason."""


def path_of(table: str, day: date, segment: int) -> str:
    """Return a file's place below the folder."""
    return f"{table}/day={day.isoformat()}/{segment:012d}.parquet"


def staging_path(path: str, run_id: int, ending: str = UNFINISHED_SUFFIX) -> str:
    """Return where a run writes the file before it moves it."""
    table, name = path.split("/")[0], path.rpartition("/")[2]
    return f"{STAGING}/{table}-{name}.{run_id}{ending}"


def claim_folder(lake: Path, *, is_used: bool) -> None:
    """Check that this is the ledger's folder. Raises LakeError.

    ``is_used``: whether the ledger has files. If not, a folder without a marker is claimed.
    """
    marker = lake / MARKER
    try:
        if is_used:
            if not marker.is_file():
                raise LakeError(
                    f"{lake} is not the folder that the archive is in: {MARKER} is missing there. "
                    "Is the disk mounted?"
                )
            return
        if any(next(lake.glob(f"{table}/*/*.parquet"), None) for table in TABLES):
            raise LakeError(
                f"{lake} has files of another archive, of which this database knows nothing: "
                "set HOOKSTATION_LAKE to a folder of its own."
            )
        lake.mkdir(parents=True, exist_ok=True)
        marker.write_text("The archive of a Hookstation: docs/pipeline.md says what is in it.\n")
        _sync(lake, lake.parent)
    except OSError as error:
        raise LakeError(f"{lake} cannot be used: {error.strerror}.") from None


def publish(lake: Path, path: str, tmp: str) -> bool:
    """Move a written file to its place; False if it does not exist (any more)."""
    try:
        if tmp.startswith(f"{STAGING}/") and (lake / tmp).exists():
            (lake / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(lake / tmp, lake / path)
    except FileNotFoundError:
        return False
    _sync(*list((lake / path).parents)[:3])
    return True


def remove(lake: Path, path: str) -> None:
    """Delete a file if it exists."""
    with suppress(FileNotFoundError):
        (lake / path).unlink()
        _sync((lake / path).parent)


def unfinished_files(lake: Path, days: Iterable[date]) -> Iterator[str]:
    """Yield unfinished files: all staged ones, and those that older versions left on these days."""
    for path in (lake / STAGING).glob(f"*{UNFINISHED_SUFFIX}"):
        yield str(path.relative_to(lake))
    for day in days:
        for table in TABLES:
            for path in (lake / table / f"day={day.isoformat()}").glob(f"*{UNFINISHED_SUFFIX}"):
                yield str(path.relative_to(lake))


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(HASH_CHUNK_BYTES):
            digest.update(part)
    return digest.hexdigest()


def _sync(*folders: Path) -> None:
    """Sync folders, so that renames and deletions in them survive a power cut."""
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
