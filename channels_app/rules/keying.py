"""Keying: the ordering key of a message whose publisher gave none (S2-63, S3-46)."""

import hashlib
import json
import math
import re
from dataclasses import dataclass

from channels_app.rules import paths

SHARED = "*"
"""The key of all messages without one, on a channel that keeps the order of all."""
_KEY = re.compile(r"[\x20-\x7e]{1,255}")
_EXACT = 2**53
"""Up to here a number of JSON is the same number to everybody who reads it."""


@dataclass(frozen=True, slots=True)
class Keying:
    """How a channel makes keys."""

    path: str = ""
    """Where in a JSON body the key stands (rules/paths); '' for nowhere."""
    is_fifo: bool = False
    """What has no key otherwise goes under SHARED."""

    def key(self, body: bytes) -> str:
        """The key of a message that brought none; '' where it has none now either."""
        found = _found(self.path, body) if self.path else ""
        return found or (SHARED if self.is_fifo else "")


def of(ordering: str, path: str) -> Keying | None:
    """The channel's way of making keys; None where it makes none, as most."""
    return Keying(path, ordering == "fifo") if path or ordering == "fifo" else None


def path_fault(path: str) -> str | None:
    """What is wrong with a path; None when it will do, or when there is none."""
    return paths.check(_plain(path)) if path else None


def _plain(path: str) -> str:
    # As JSONPath writes it; the sign means nothing else here.
    return path.removeprefix("$.")


def _found(path: str, body: bytes) -> str:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return _text(next(paths.found(_plain(path), value), None))


def _text(found: object) -> str:
    """Text and numbers as a key; '' for anything else. One value is one key, however written."""
    if isinstance(found, bool) or not isinstance(found, str | int | float):
        return ""
    if isinstance(found, float):
        if not math.isfinite(found):
            return ""
        found = int(found) if found.is_integer() and abs(found) < _EXACT else found
    try:
        text = str(found)
    except ValueError:
        return ""  # a whole number of thousands of digits
    if not text or _KEY.fullmatch(text):
        return text
    # A key goes along in a header, which has no room for this one: a name for it will do.
    return f"sha256:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"
