"""Prepare bodies for display: as JSON, form, text and hexadecimal; never executed or rendered."""

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import CharField, Func, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from channels_app.admin import base
from channels_app.core import access, body_preview, http
from channels_app.core.encryption import Keyring, Unreadable
from channels_app.models import Channel, Message, MessageBody
from channels_app.registry import data_encryption

HIDDEN = "Only people who may view messages see it."
SENSITIVE = "The channel is sensitive: only people who may open its messages see it."


@dataclass(frozen=True, slots=True)
class BodyView(body_preview.Shown):
    """One body in each format that applies; always as text, too."""

    note: str = ""
    """What is left out, or why nothing is shown."""
    data: bytes = b""
    """The whole body."""


def read(message: Message) -> bytes:
    """The exact bytes. Raises Unreadable."""
    row = MessageBody.objects.filter(message_id=message.id).first()
    if row is None:
        raise Unreadable("The body is not stored any more.")
    return data_encryption.decrypt_body(message.id, bytes(row.data), row.key_id)


def without_bytes(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Rows of bodies without their data, annotated with its first byte, which tells the format."""
    form = Func("data", template="HEX(SUBSTR(%(expressions)s, 1, 1))", output_field=CharField())
    annotated: QuerySet[Any] = rows.defer("data").annotate(form=form)
    return annotated


def protection(row: Any) -> str:
    """The key that protects a row of ``without_bytes``, and the format."""
    if not row.key_id:
        return "nothing: stored plain, without a digest"
    key = base.mono(row.key_id)
    is_encrypted = Keyring.is_encrypted(bytes.fromhex(row.form))
    return key if is_encrypted else format_html("{} (plain, with its digest)", key)


def view(message: Message) -> BodyView:
    """The body for a page; if it cannot be read, a note says why."""
    try:
        data = read(message)
    except Unreadable as error:
        return BodyView(message.body_bytes, note=str(error))
    shown = body_preview.show(data, message.content_type)
    return BodyView(
        size=shown.size,
        pretty=shown.pretty,
        fields=shown.fields,
        text=data[: body_preview.MAX_TEXT].decode("utf-8", errors="replace"),
        hexdump=shown.hexdump,
        is_cut=shown.is_cut,
        note=f"The text ends after {body_preview.MAX_TEXT} bytes." if shown.is_cut else "",
        data=data,
    )


def hidden(request: HttpRequest, channel: Channel) -> str:
    """Why the user may not see bodies and responses of the channel; '' if they may."""
    if not request.user.has_perm("channels_app.view_message"):
        return HIDDEN
    if channel.sensitive and not request.user.has_perm(access.SENSITIVE):
        return SENSITIVE
    return ""


def may_see(request: HttpRequest, channel: Channel) -> bool:
    """Whether the user may see bodies and responses of the channel."""
    return not hidden(request, channel)


def shown_to(request: HttpRequest, message: Message) -> BodyView:
    """The body for a page, if this user may see it."""
    note = hidden(request, message.channel)
    return BodyView(message.body_bytes, note=note) if note else view(message)


def publishing(message: Message, data: bytes) -> str:
    """A command that publishes a copy of the message; it reads the API key from $KEY."""
    headers = {
        "Authorization": "Bearer $KEY",
        "Content-Type": message.content_type,
        "Hookstation-Event-Type": message.event_type,
        "Hookstation-Ordering-Key": message.ordering_key,
    }
    url = f"{settings.PUBLIC_URL}/api/v1/channels/{message.channel.slug}/messages"
    line = http.line(url, [(name, value) for name, value in headers.items() if value], data)
    # Double quotes, so that the shell substitutes the key.
    return line.replace("'Authorization: Bearer $KEY'", '"Authorization: Bearer $KEY"', 1)
