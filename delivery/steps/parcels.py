"""Parcels: read what claimed deliveries carry, once per message however many consumers."""

from collections.abc import Iterable
from dataclasses import dataclass

from channels_app import sealing
from channels_app.models import Message, MessageBody
from channels_app.rules.encryption import Unreadable


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message's content, opened."""

    content_type: str
    headers: dict[str, str]
    body: bytes | None
    """None: missing, or no key opens it."""
    error: str = ""


def load(message_ids: Iterable[int]) -> dict[int, Parcel]:
    """Content of these messages; an id without a row is absent."""
    ids = set(message_ids)
    found = MessageBody.objects.filter(message_id__in=ids).values_list("message_id", "data")
    bodies = {message_id: bytes(data) for message_id, data in found}
    rows = Message.objects.filter(id__in=ids).values_list("id", "content_type", "headers")
    return {
        message_id: _open(message_id, content_type, headers, bodies.get(message_id))
        for message_id, content_type, headers in rows
    }


def _open(
    message_id: int, content_type: str, headers: dict[str, str], data: bytes | None
) -> Parcel:
    if data is None:
        return Parcel(content_type, headers, None, "The stored body is missing.")
    try:
        body = sealing.open_body(message_id, data)
    except Unreadable as error:
        return Parcel(content_type, headers, None, str(error))
    return Parcel(content_type, headers, body)
