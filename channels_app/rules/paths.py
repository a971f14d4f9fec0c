"""Paths into JSON, in JMESPath's words for names, places and ``[*]``: nothing that computes.

JMESPath itself has functions, filters and lists made on the way, with which a short expression can
ask for much work: a hundred ``[]`` took 45 s on a megabyte. These do not: whatever the document,
each part of a path looks once at what the part before it found.
"""

import re
from collections.abc import Iterator

import jmespath

MAX_LENGTH = 200
_NAME = r'(?:[A-Za-z_][A-Za-z0-9_]*|"[^"\\\x00-\x1f]{1,100}")'
_PLACE = r"\[(?:\*|[0-9]{1,4})\]"
PATTERN = rf"^(?:{_NAME}|{_PLACE})(?:\.{_NAME}|{_PLACE})*$"
_PATH = re.compile(PATTERN)


def check(path: str) -> str | None:
    """Why this is no path, as a sentence; None when it is one."""
    if _PATH.fullmatch(path):
        return None
    return "A path looks like messages[0].id or entry[*].changes[*].value."


def found(path: str, value: object) -> Iterator[object]:
    """What a path that `check` let through finds, in order: lists opened, nulls left out."""
    open_ends = [jmespath.search(path, value)]
    while open_ends:
        end = open_ends.pop()
        if isinstance(end, list):
            open_ends += reversed(end)
        elif end is not None:
            yield end
