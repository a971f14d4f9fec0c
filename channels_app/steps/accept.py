"""Accept: store messages in one transaction, once per idempotency key, then say yes (S0-26)."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from django.db import transaction

from channels_app import clock, metrics, sealing, transactions
from channels_app.directory import ChannelView
from channels_app.models import IdempotencyRecord, Message, MessageBody, new_id
from channels_app.signals import message_accepted

Row = TypeVar("Row")

STATEMENT_BYTES = 4 * 1024 * 1024
"""Content of one INSERT, unless a single row has more. Quoted it may take twice as much, and
servers refuse what is above ``max_allowed_packet`` (16 MiB on MariaDB)."""


@dataclass(frozen=True, slots=True)
class Publication:
    """One message as a producer sent it, already validated."""

    body: bytes
    content_type: str = ""
    idempotency_key: str = ""
    event_type: str = ""
    priority: int = 4
    """0 (lowest) to 9."""
    due_at: datetime | None = None
    """Not before this instant; None means now."""
    delay_ms: int | None = None
    """From the moment of acceptance, by the database's clock."""
    expires_at: datetime | None = None
    ordering_key: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of one publication."""

    message_id: int
    duplicate: bool
    """An earlier message with this idempotency key stands; nothing was stored."""
    conflict: bool
    """That earlier message had another body: this one was refused."""
    due_at: datetime


def accept(
    channel: ChannelView, producer_id: int | None, publications: Sequence[Publication]
) -> list[Accepted]:
    """Store ``publications`` in one transaction and wake delivery; results in the same order.

    Returns only after the commit: an exception means that nothing was stored. Raises what the
    database raises when it cannot store (the API answers 503).
    """
    now = clock.now()
    results = transactions.run(
        lambda: _store(channel, producer_id, publications, now), on_collision=new_id.reseed
    )
    stored = sum(not (result.duplicate or result.conflict) for result in results)
    metrics.ACCEPTED.inc(stored)
    metrics.DUPLICATES.inc(sum(result.duplicate for result in results))
    if stored:
        transaction.on_commit(
            lambda: message_accepted.send(sender=None, channel_id=channel.id), robust=True
        )
    return results


def _store(
    channel: ChannelView,
    producer_id: int | None,
    publications: Sequence[Publication],
    now: datetime,
) -> list[Accepted]:
    taken = _taken(channel, producer_id, publications, now)
    messages: list[Message] = []
    bodies: list[MessageBody] = []
    records: list[IdempotencyRecord] = []
    results: list[Accepted] = []
    due: dict[int, datetime] = {}
    for publication in publications:
        digest = _digest(channel.id, producer_id, publication.idempotency_key)
        body_digest = hashlib.sha256(publication.body).hexdigest() if digest else ""
        if digest and (record := taken.get(digest)):
            results.append(_repeated(record, body_digest, due.get(record.message_id), now))
            continue
        message = _message(channel, producer_id, publication, now)
        messages.append(message)
        due[message.id] = message.due_at
        bodies.append(_body(channel, message.id, publication.body))
        if digest:
            window = timedelta(seconds=channel.idempotency_window_s)
            taken[digest] = IdempotencyRecord(
                digest=digest,
                message_id=message.id,
                body_digest=body_digest,
                expires_at=now + window,
            )
            records.append(taken[digest])
        results.append(Accepted(message.id, False, False, message.due_at))
    IdempotencyRecord.objects.bulk_create(records)
    for some in _statements(messages, lambda message: len(str(message.headers))):
        Message.objects.bulk_create(some)
    for part in _statements(bodies, lambda body: len(body.data)):
        MessageBody.objects.bulk_create(part)
    return results


def _statements(rows: Sequence[Row], size: Callable[[Row], int]) -> Iterator[list[Row]]:
    """``rows`` in order, in parts that one statement can carry."""
    part: list[Row] = []
    room = STATEMENT_BYTES
    for row in rows:
        room -= size(row)
        if part and room < 0:
            yield part
            part, room = [], STATEMENT_BYTES - size(row)
        part.append(row)
    if part:
        yield part


def _taken(
    channel: ChannelView,
    producer_id: int | None,
    publications: Sequence[Publication],
    now: datetime,
) -> dict[str, IdempotencyRecord]:
    """Records of these keys whose window is open; the others are removed to make room."""
    digests = {
        _digest(channel.id, producer_id, publication.idempotency_key)
        for publication in publications
        if publication.idempotency_key
    }
    if not digests:
        return {}
    found = IdempotencyRecord.objects.in_bulk(digests)
    lapsed = [digest for digest, record in found.items() if record.expires_at <= now]
    if lapsed:
        IdempotencyRecord.objects.filter(digest__in=lapsed, expires_at__lte=now).delete()
    return {digest: record for digest, record in found.items() if record.expires_at > now}


def _digest(channel_id: int, producer_id: int | None, key: str) -> str:
    if not key:
        return ""
    return hashlib.sha256(f"{channel_id}:{producer_id}:{key}".encode()).hexdigest()


def _repeated(
    record: IdempotencyRecord, body_digest: str, due_at: datetime | None, now: datetime
) -> Accepted:
    same = record.body_digest == body_digest
    if due_at is None:  # not of this batch
        earlier = Message.objects.filter(id=record.message_id)
        due_at = earlier.values_list("due_at", flat=True).first()
    return Accepted(record.message_id, same, not same, due_at or now)


def _message(
    channel: ChannelView, producer_id: int | None, publication: Publication, now: datetime
) -> Message:
    if publication.delay_ms is not None:
        due_at = now + timedelta(milliseconds=publication.delay_ms)
    else:
        due_at = max(publication.due_at or now, now)
    return Message(
        id=new_id(),
        channel_id=channel.id,
        producer_id=producer_id,
        event_type=publication.event_type,
        priority=publication.priority,
        ordering_key=publication.ordering_key,
        idempotency_key=publication.idempotency_key,
        content_type=publication.content_type,
        headers=dict(publication.headers),
        body_bytes=len(publication.body),
        accepted_at=now,
        due_at=due_at,
        expires_at=publication.expires_at,
    )


def _body(channel: ChannelView, message_id: int, body: bytes) -> MessageBody:
    data, key_id = sealing.seal_body(message_id, body, encrypt=channel.encrypt_bodies)
    return MessageBody(message_id=message_id, data=data, key_id=key_id)
