"""Preview a body for people, as JSON, a form, text or bytes; never execute it."""

import json
from dataclasses import dataclass
from urllib.parse import parse_qsl

MAX_PRETTY = 256 * 1024
MAX_TEXT = 64 * 1024
MAX_HEX = 4 * 1024
MAX_FIELDS = 500
ROW = 16
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Shown:
    """One body in each format that applies; pages show the first that is not empty."""

    size: int
    pretty: str = ""
    """Indented JSON; '' if the body is not JSON or too long for a page."""
    fields: tuple[tuple[str, str], ...] = ()
    """Fields of a form."""
    text: str = ""
    """The beginning, if it is UTF-8."""
    hexdump: str = ""
    """The beginning as a hexadecimal dump."""
    is_cut: bool = False


def show(body: bytes, content_type: str = "") -> Shown:
    """Prepare the body for a page."""
    return Shown(
        size=len(body),
        pretty=_pretty(body),
        fields=_fields(body, content_type),
        text=_text(body),
        hexdump=_hexdump(body[:MAX_HEX]),
        is_cut=len(body) > MAX_TEXT,
    )


def _pretty(body: bytes) -> str:
    if len(body) > MAX_PRETTY:
        return ""
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""


def _fields(body: bytes, content_type: str) -> tuple[tuple[str, str], ...]:
    if content_type.partition(";")[0].strip().lower() != FORM:
        return ()
    try:
        pairs = parse_qsl(
            body[:MAX_TEXT].decode(),
            keep_blank_values=True,
            strict_parsing=True,
            max_num_fields=MAX_FIELDS,
        )
    except ValueError:
        return ()
    return tuple(pairs)


def _text(body: bytes) -> str:
    start = body[:MAX_TEXT]
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        # The cut may split a character; that does not make the body binary.
        if len(body) <= MAX_TEXT or error.start < MAX_TEXT - 3:
            return ""
    return start.decode("utf-8", errors="ignore")


def _hexdump(body: bytes) -> str:
    rows = []
    for start in range(0, len(body), ROW):
        row = body[start : start + ROW]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        rows.append(f"{start:08x}  {row.hex(' '):<{ROW * 3 - 1}}  {letters}")
    return "\n".join(rows)
