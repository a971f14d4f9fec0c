"""How a body is shown to people: as JSON, as text and byte by byte, never run or drawn."""

import json
from dataclasses import dataclass

from channels_app import sealing
from channels_app.models import Message, MessageBody
from channels_app.rules.encryption import Unreadable

MOST_PRETTY = 256 * 1024
MOST_TEXT = 64 * 1024
MOST_HEX = 4 * 1024
ROW = 16


@dataclass(frozen=True, slots=True)
class BodyView:
    """One body in every form that it has."""

    size: int
    pretty: str = ""
    """Indented JSON; '' when it is none, or too long for a page."""
    text: str = ""
    """The beginning as UTF-8."""
    hexdump: str = ""
    """The beginning, byte by byte."""
    note: str = ""
    """What is left out, or why nothing is shown."""


def read(message: Message) -> bytes:
    """The exact bytes. Raises Unreadable."""
    row = MessageBody.objects.filter(message_id=message.id).first()
    if row is None:
        raise Unreadable("The body is not stored any more.")
    return sealing.open_body(message.id, bytes(row.data))


def view(message: Message) -> BodyView:
    """The body for a page; what cannot be read says why."""
    try:
        data = read(message)
    except Unreadable as error:
        return BodyView(message.body_bytes, note=str(error))
    note = f"The text ends after {MOST_TEXT} bytes." if len(data) > MOST_TEXT else ""
    return BodyView(
        size=len(data),
        pretty=pretty(data),
        text=data[:MOST_TEXT].decode("utf-8", errors="replace"),
        hexdump=hexdump(data[:MOST_HEX]),
        note=note,
    )


def pretty(data: bytes) -> str:
    """Indented JSON, '' for what is none or too long."""
    if len(data) > MOST_PRETTY:
        return ""
    try:
        return json.dumps(json.loads(data), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""


def hexdump(data: bytes) -> str:
    """Offset, bytes and letters of each row of 16."""
    rows = []
    for start in range(0, len(data), ROW):
        row = data[start : start + ROW]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        rows.append(f"{start:08x}  {row.hex(' '):<{ROW * 3 - 1}}  {letters}")
    return "\n".join(rows)
