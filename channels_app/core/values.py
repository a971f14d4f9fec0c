"""Check values of parsed JSON: whole numbers, text and documents that a database can store."""

import json
import re

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNPRINTABLE_LINES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

MAX_JSON_DEPTH = 32
"""Maximum nesting of a JSON value in a registration; real values are far below it."""
MASK = "********"
"""Shown instead of a stored secret; writing it back keeps the stored value."""


def whole_number(value: object) -> int | None:
    """The integer that a JSON number stands for, such as 3.0; None for any other value."""
    # In Python True is an int, but in JSON it is not a number.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def is_unprintable(text: str, *, lines: bool = False) -> bool:
    """Whether it has control characters or unpaired surrogates; ``lines`` allows line breaks."""
    return (_UNPRINTABLE_LINES if lines else _UNPRINTABLE).search(text) is not None


def without_controls(text: str) -> str:
    """Control characters become spaces."""
    return _UNPRINTABLE.sub(" ", text)


def check_json(value: object, most_bytes: int) -> None:
    """Raise ValueError for a value that no database can store, or above ``most_bytes`` as text."""
    _check_depth(value, MAX_JSON_DEPTH)
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except UnicodeEncodeError:
        raise ValueError("Unpaired surrogates cannot be stored.") from None
    except (TypeError, ValueError):
        raise ValueError("A JSON value is needed; NaN and Infinity are not JSON.") from None
    if size > most_bytes:
        raise ValueError(f"At most {most_bytes} bytes are stored.")


def _check_depth(value: object, levels: int) -> None:
    if levels < 0:
        raise ValueError(f"At most {MAX_JSON_DEPTH} levels are stored.")
    inner: object = list(value.values()) if isinstance(value, dict) else value
    if isinstance(inner, list):
        for entry in inner:
            _check_depth(entry, levels - 1)
