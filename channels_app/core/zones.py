"""Read the rules of time zones, and again when their files change on disk."""

import os
import zoneinfo
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias
from zoneinfo import ZoneInfo

RulesVersion: TypeAlias = tuple[int, int, int] | None
"""Identifies a zone's file: inode, size and time of change. None: it has no file."""

_known: dict[str, RulesVersion] = {}


def zone(name: str) -> ZoneInfo:
    """Return the time zone of an IANA name, by the rules that are installed now.

    Python reads a zone once for each process, so that a process that runs on while the rules are
    updated keeps the old ones. Raises ZoneInfoNotFoundError and ValueError as `ZoneInfo` does.
    """
    current = ZoneInfo(name)
    version = version_of(name)
    if _known.setdefault(name, version) != version:
        _known[name] = version
        ZoneInfo.clear_cache(only_keys=[name])
        current = ZoneInfo(name)
    return current


def version_of(name: str) -> RulesVersion:
    """Return what identifies the rules of a zone: another version means that they may differ.

    ``name`` is one that `ZoneInfo` accepts.
    """
    for folder in (*zoneinfo.TZPATH, *_package()):
        try:
            status = os.stat(os.path.join(folder, name))
        except OSError:
            continue
        return status.st_ino, status.st_size, status.st_mtime_ns
    return None


@lru_cache(maxsize=1)
def _package() -> tuple[str, ...]:
    """Return the folder of the package `tzdata`, which `ZoneInfo` reads after the search path."""
    spec = find_spec("tzdata")
    return (str(Path(spec.origin).with_name("zoneinfo")),) if spec and spec.origin else ()
