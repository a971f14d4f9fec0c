"""Find values in JSON by a path: the part of JMESPath with names, indexes and ``[*]``.

Full JMESPath has functions, filters and flattening, with which a short expression can take long: a
hundred ``[]`` took 45 s on a megabyte. Here each part of a path visits only once what the part
before it found, in any document.
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
    """Return why the text is not a path, as a sentence; None if it is one."""
    if _PATH.fullmatch(path):
        return None
    return "A path looks like messages[0].id or entry[*].changes[*].value."


def values_at(path: str, value: object) -> Iterator[object]:
    """The values that a valid path finds, in order; lists are flattened, nulls left out."""
    open_ends = [jmespath.search(path, value)]
    while open_ends:
        end = open_ends.pop()
        if isinstance(end, list):
            open_ends += reversed(end)
        elif end is not None:
            yield end
