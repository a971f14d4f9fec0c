"""Derive the ordering key of a message whose publisher gave none (S2-63, S3-46)."""

import hashlib
import json
import math
import re
from dataclasses import dataclass

from channels_app.core import json_paths

SHARED = "*"
"""Key of all messages without one, on a FIFO channel."""
_KEY = re.compile(r"[\x20-\x7e]{1,255}")
_EXACT = 2**53
"""Up to this limit every JSON parser reads an integer exactly."""


@dataclass(frozen=True, slots=True)
class Keying:
    """How a channel derives ordering keys."""

    path: str = ""
    """Path of the key in a JSON body (core/json_paths); '' for none."""
    is_fifo: bool = False
    """Whether messages without a key get SHARED."""

    def key(self, body: bytes) -> str:
        """The key of a message that was published without one; '' if it has none."""
        key = _key_at(self.path, body) if self.path else ""
        return key or (SHARED if self.is_fifo else "")


def of(ordering: str, path: str) -> Keying | None:
    """The channel's keying; None if it derives no keys, as most channels."""
    return Keying(path, ordering == "fifo") if path or ordering == "fifo" else None


def path_fault(path: str) -> str | None:
    """Return what is wrong with a path; None if it is valid or empty."""
    return json_paths.check(_plain(path)) if path else None


def _plain(path: str) -> str:
    # JSONPath begins with it. It has no other meaning here.
    return path.removeprefix("$.")


def _key_at(path: str, body: bytes) -> str:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return _text(next(json_paths.values_at(_plain(path), value), None))


def _text(value: object) -> str:
    """Text or a number as a key; '' for anything else. Equal numbers give equal keys."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    if isinstance(value, float):
        if not math.isfinite(value):
            return ""
        value = int(value) if value.is_integer() and abs(value) < _EXACT else value
    try:
        text = str(value)
    except ValueError:
        return ""  # an integer with thousands of digits
    if not text or _KEY.fullmatch(text):
        return text
    # A key is sent in a header, where this one is not allowed: use its hash instead.
    return f"sha256:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"
