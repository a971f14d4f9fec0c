"""Compute signatures that dead letters share if only the numbers in their responses differ.

Runs on executors for each dead letter.
"""

import hashlib
import re

MAX_LENGTH = 250
"""Characters of a response that count, and maximum length of a shape."""
_FOUR_BYTES = 4
"""Bytes of the longest UTF-8 character."""
_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?(?:z|gmt|utc|[+-]\d\d:?\d\d))?"
_HEXES = "[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*"

_VARIABLE = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        # Patterns that contain others come first.
        (r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "<uuid>"),
        (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "<mail>"),
        (
            rf"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,?\s)?(?:\d{{1,2}}[ -]{_MONTH}[ -]\d{{4}}"
            rf"|{_MONTH}\s\d{{1,2}},?\s\d{{4}}|\d{{4}}[-/]\d\d[-/]\d\d)(?:(?:\s|t|,\s){_CLOCK})?",
            "<time>",
        ),
        (r"(?<![\w:])(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}(?![\w:])", "<address>"),
        (rf"(?<![\w:])(?:{_HEXES})?::(?:{_HEXES})?(?![\w:])", "<address>"),
        (r"(?<![\w:])(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}(?![\w:])", "<address>"),
        (r"(?<!\d)\d{1,3}(?:\.\d{1,3}){3}(?!\d)", "<address>"),
        (rf"(?<!\d){_CLOCK}(?!\d)", "<time>"),
        # Ids: long hexadecimal ones, and letters mixed with digits.
        (r"(?<![0-9a-z])[0-9a-f]{8,}(?![0-9a-z])", "#"),
        (r"(?<![0-9a-z])(?=[a-z]*\d)[0-9a-z]{6,}(?![0-9a-z])", "#"),
        (r"\d+(?:[.,]\d+)*", "#"),
    )
)


def answer(error: str | None, excerpt: bytes | None) -> str:
    """Return an attempt's error as text, or else the beginning of its response."""
    if error:
        return error[:MAX_LENGTH]
    # Cut first, since a response may be much longer.
    return bytes(excerpt or b"")[: _FOUR_BYTES * MAX_LENGTH].decode("utf-8", "replace")[:MAX_LENGTH]


def shape(text: str) -> str:
    """Replace what differs between responses: ids, addresses, times, numbers."""
    while (simpler := _simpler(text)) != text:
        # Each round leaves fewer characters outside placeholders.
        text = simpler
    return text


def signature(
    outcome: str, status_code: int | None, host: str, shape: str, mac_key: bytes = b""
) -> str:
    """Return 32 hexadecimal digits; with a key, only its owner can find the shape for them."""
    whole = "\0".join((outcome, str(status_code or ""), host, shape))
    return hashlib.blake2s(whole.encode(), digest_size=16, key=mac_key).hexdigest()


def _simpler(text: str) -> str:
    text = "".join(char if char.isprintable() else " " for char in text)
    for pattern, name in _VARIABLE:
        text = pattern.sub(name, text)
    return " ".join(text.split())[:MAX_LENGTH].rstrip()
