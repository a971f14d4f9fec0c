"""How a body is shown to people: as JSON, form, text and byte by byte, never run or drawn."""

import json
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from django.conf import settings

from channels_app import sealing
from channels_app.models import Message, MessageBody
from channels_app.rules import curl
from channels_app.rules.encryption import Unreadable

MOST_PRETTY = 256 * 1024
MOST_TEXT = 64 * 1024
MOST_HEX = 4 * 1024
MOST_FIELDS = 500
FORM = "application/x-www-form-urlencoded"
ROW = 16


@dataclass(frozen=True, slots=True)
class BodyView:
    """One body in every form that it has."""

    size: int
    pretty: str = ""
    """Indented JSON; '' when it is none, or too long for a page."""
    form: list[tuple[str, str]] = field(default_factory=list)
    """Names and values of a form; empty when it is none."""
    text: str = ""
    """The beginning as UTF-8."""
    hexdump: str = ""
    """The beginning, byte by byte."""
    note: str = ""
    """What is left out, or why nothing is shown."""
    data: bytes = b""
    """All of it."""


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
        form=form(data) if message.content_type.startswith(FORM) else [],
        data=data,
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


def form(data: bytes) -> list[tuple[str, str]]:
    """The fields of a form in their order; none for what is no form."""
    try:
        return parse_qsl(
            data[:MOST_TEXT].decode(),
            keep_blank_values=True,
            strict_parsing=True,
            max_num_fields=MOST_FIELDS,
        )
    except ValueError:
        return []


def publishing(message: Message, data: bytes) -> str:
    """The command that publishes a message like this one; the key stands in the shell's KEY."""
    headers = {
        "Authorization": "Bearer $KEY",
        "Content-Type": message.content_type,
        "Hookstation-Event-Type": message.event_type,
        "Hookstation-Ordering-Key": message.ordering_key,
    }
    url = f"{settings.PUBLIC_URL}/api/v1/channels/{message.channel.slug}/messages"
    line = curl.line(url, [(name, value) for name, value in headers.items() if value], data)
    # In double quotes, in which the shell puts the key.
    return line.replace("'Authorization: Bearer $KEY'", '"Authorization: Bearer $KEY"', 1)


def hexdump(data: bytes) -> str:
    """Offset, bytes and letters of each row of 16."""
    rows = []
    for start in range(0, len(data), ROW):
        row = data[start : start + ROW]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        rows.append(f"{start:08x}  {row.hex(' '):<{ROW * 3 - 1}}  {letters}")
    return "\n".join(rows)
