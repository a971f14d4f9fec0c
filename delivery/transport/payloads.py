"""Read the payloads of claimed deliveries, and build the request of each attempt."""

import json
import logging
from collections import Counter as Tally
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from channels_app.core import ids
from channels_app.core.encryption import Changed, KeyMissing, Unreadable
from channels_app.database import raw
from channels_app.models import Message, MessageBody
from channels_app.registry import data_encryption
from channels_app.registry.cache import ConsumerConfig, Signer
from delivery.acks import callbacks
from delivery.conf import conf
from delivery.core import signing
from delivery.core.lifecycle import ClaimedDelivery
from delivery.core.outcome import Outcome
from delivery.transport import Call, Sender, Transport

logger = logging.getLogger(__name__)
SMALL_BYTES = 64 * 1024
"""Bodies up to this size are read with the message; larger ones only when they are needed."""
KEPT_BYTES = 8 * 1024 * 1024
"""Bytes of bodies that a cache keeps for consumers that claim later."""
READ_AT_ONCE = 500
_COLUMNS = f"""
SELECT m.id, m.content_type, m.headers, m.consumer_count, m.body_bytes,
    CASE WHEN m.body_bytes <= %s THEN b.data END, b.key_id
FROM {Message._meta.db_table} m
LEFT JOIN {MessageBody._meta.db_table} b ON b.message_id = m.id
WHERE m.id IN """
Row: TypeAlias = tuple[Any, ...]
"""A message's row as `select_payloads` returns it."""


class Payload(NamedTuple):
    """The decrypted content of a message."""

    content_type: str
    headers: dict[str, str]
    body: bytes | None
    """None if the body is large and not loaded, or unavailable; then ``error`` says why."""
    size: int
    """Bytes of the body."""
    error: str = ""
    missing_key: str = ""
    """Id of a key that this process lacks; another process may have it."""
    outcome: Outcome = Outcome.BODY_UNREADABLE
    """Outcome of an attempt if there is an ``error`` instead of a body."""

    @property
    def is_left(self) -> bool:
        """Whether the body exists but is not loaded."""
        return self.body is None and not self.error


MISSING = Payload("", {}, None, 0, "The stored message is missing.")
"""The payload of a message without a row."""


def select_payloads(message_ids: Iterable[int], largest: int = SMALL_BYTES) -> raw.Statement:
    """Return the query for these messages' payloads, with bodies up to ``largest`` bytes."""
    return f"{_COLUMNS}({raw.listed(message_ids)})", [largest]


def load(message_ids: Iterable[int]) -> dict[int, Payload]:
    """Load the payloads of these messages, of any size; an id without a row is absent."""
    return {row[0]: _open(row) for row in _read(set(message_ids), largest=1 << 62)}


class PayloadCache:
    """Payloads that a pump keeps in memory, up to ``KEPT_BYTES``.

    A message for several consumers is kept until all of them have used it, or until newer ones need
    the space. So consumers that claim at different times do not each read it.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._room = kept_bytes
        self._kept: OrderedDict[int, tuple[Payload, int]] = OrderedDict()
        """Payloads with the number of remaining uses, oldest first."""

    def load(self, message_ids: Iterable[int]) -> dict[int, Payload]:
        """Return payloads; pass each id as often as it is sent. An id without a row is absent.

        Large bodies are not loaded; see `Payload.is_left` and `load`.
        """
        uses = Tally(message_ids)
        loaded = {key: self._kept[key][0] for key in uses if key in self._kept}
        for key in loaded:
            self._use(key, uses[key])
        for row in _read(uses.keys() - loaded.keys(), largest=SMALL_BYTES):
            key, _, _, consumer_count, *_ = row
            payload = loaded[key] = _open(row)
            if payload.body is not None and consumer_count > uses[key]:
                self._keep(key, payload, consumer_count - uses[key])
        return loaded

    def prepare(self, message_ids: Iterable[int]) -> None:
        """Read payloads that will be sent soon; large bodies are not loaded."""
        for row in _read(set(message_ids) - self._kept.keys(), largest=SMALL_BYTES):
            key, _, _, consumer_count, *_ = row
            payload = _open(row)
            if payload.body is not None:
                self._keep(key, payload, max(1, consumer_count))

    def add(self, rows: Iterable[Row], uses: Mapping[int, int]) -> None:
        """Keep rows that were read already, for this many uses each, except large bodies."""
        for row in rows:
            key = row[0]
            if uses.get(key) and key not in self._kept:
                payload = _open(row)
                if payload.body is not None:
                    self._keep(key, payload, uses[key])

    def _use(self, key: int, times: int) -> None:
        payload, remaining = self._kept[key]
        if remaining > times:
            self._kept[key] = payload, remaining - times
        else:
            self._drop(key)

    def _keep(self, key: int, payload: Payload, remaining: int) -> None:
        self._kept[key] = payload, remaining
        self._room -= payload.size
        while self._room < 0:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: int) -> None:
        self._room += self._kept.pop(key)[0].size


def sender(max_connections: int) -> Transport:
    """Return a transport with the installation's limits, and up to ``max_connections`` open."""
    return Sender(
        allowed=conf().allowed_networks,
        excerpt_bytes=conf().excerpt_bytes,
        max_response_bytes=conf().max_response_bytes,
        ca_file=conf().ca_file or None,
        max_connections=max_connections,
    )


class DeliveryMetadata(NamedTuple):
    """The values of the broker's own headers for one attempt."""

    message_id: str
    event_type: str
    priority: int
    attempt: int
    """1 for the first try since the last replay (`ClaimedDelivery.tries`)."""
    accepted_at: datetime
    ordering_key: str = ""
    replay: bool = False
    test: bool = False
    delivery_id: int = 0
    """0 for a sample."""


def stamp(claimed: ClaimedDelivery) -> DeliveryMetadata:
    """Return the header values for a claimed delivery."""
    return DeliveryMetadata(
        message_id=ids.to_public("msg", claimed.message_id),
        event_type=claimed.event_type,
        priority=claimed.priority,
        attempt=claimed.tries,
        accepted_at=claimed.accepted_at,
        ordering_key=claimed.ordering_key,
        replay=claimed.replayed,
        delivery_id=claimed.id,
    )


def call(
    key: int,
    consumer: ConsumerConfig,
    signer: Signer,
    payload: Payload,
    mark: DeliveryMetadata,
    now: datetime,
) -> Call:
    """Return the signed request; by Standard Webhooks each attempt has its own timestamp."""
    assert payload.body is not None
    timestamp = int(now.timestamp())
    return Call(
        key=key,
        url=consumer.url,
        headers=signing.build(
            signing.Envelope(
                message_id=mark.message_id,
                timestamp=timestamp,
                signature=_signatures(signer, mark.message_id, timestamp, payload.body, now),
                content_type=payload.content_type,
                channel=consumer.channel_slug,
                consumer=consumer.client_id,
                event_type=mark.event_type,
                priority=mark.priority,
                attempt=mark.attempt,
                max_attempts=consumer.retry_for(mark.event_type).max_attempts,
                accepted_at=mark.accepted_at,
                ordering_key=mark.ordering_key,
                ack_url=_ack_url(consumer, mark),
                replay=mark.replay,
                test=mark.test,
                user_agent=conf().user_agent,
                forwarded=payload.headers,
                static=dict(signer.headers),
            )
        ),
        body=payload.body,
        timeout_ms=consumer.timeout_ms,
        connect_timeout_ms=min(conf().connect_timeout_ms, consumer.timeout_ms),
        may_use_http2=consumer.http_version == "auto",
    )


def _open(row: Row) -> Payload:
    message_id, content_type, headers, _, size, data, key_id = row
    forwarded: dict[str, str] = {}
    try:
        if headers != "{}":
            forwarded = data_encryption.decrypt_headers(message_id, json.loads(headers))
        if key_id is None:
            return Payload(content_type, forwarded, None, size, "The stored body is missing.")
        if data is None:
            return Payload(content_type, forwarded, None, size)
        body = data_encryption.decrypt_body(message_id, bytes(data), key_id)
    except Changed as error:
        logger.error("message %s cannot be sent: %s", ids.to_public(ids.MESSAGE, message_id), error)
        outcome = Outcome.INTEGRITY_ERROR
        return Payload(content_type, forwarded, None, size, str(error), outcome=outcome)
    except KeyMissing as error:
        return Payload(content_type, forwarded, None, size, str(error), error.key_id)
    except Unreadable as error:
        return Payload(content_type, forwarded, None, size, str(error))
    return Payload(content_type, forwarded, body, len(body))


def _read(message_ids: Collection[int], *, largest: int) -> Iterable[Row]:
    keys = sorted(message_ids)
    for start in range(0, len(keys), READ_AT_ONCE):
        yield from raw.read(*select_payloads(keys[start : start + READ_AT_ONCE], largest))


def _signatures(signer: Signer, message_id: str, timestamp: int, body: bytes, now: datetime) -> str:
    v1 = _valid(signer.v1, now)
    v1a = _valid(signer.v1a, now)
    tokens = signing.sign(v1, message_id, timestamp, body)
    if not v1a:
        return tokens
    more = signing.sign_v1a(v1a, message_id, timestamp, body)
    return f"{tokens} {more}" if tokens else more  # libraries reject an empty token


def _valid(keys: Sequence[tuple[bytes, datetime | None]], now: datetime) -> list[bytes]:
    return [key for key, expires_at in keys if expires_at is None or expires_at > now]


def _ack_url(consumer: ConsumerConfig, mark: DeliveryMetadata) -> str:
    if not (consumer.ack and consumer.ack["mode"] == "callback" and mark.delivery_id):
        return ""
    return f"{conf().public_url}/acks/{callbacks.token(mark.delivery_id)}"
