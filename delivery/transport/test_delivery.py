"""Send one signed sample to a consumer and wait for its response, outside of any delivery."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from secrets import token_bytes
from typing import Any

from channels_app.conf import conf
from channels_app.core import backoff, ids, names, times
from channels_app.core.encryption import Unreadable
from channels_app.core.errors import Conflict, KeyUnavailable, RateLimited
from channels_app.database import clock
from channels_app.models import EventType, new_id
from channels_app.registry.cache import ChannelConfig, ConsumerConfig, Signer, config_cache
from channels_app.registry.data_encryption import StoredResponse
from delivery.transport import Call, Response, payloads
from delivery.transport.payloads import DeliveryMetadata, Payload

PREFIX = "msg_test"
"""Prefix of the sample's ``webhook-id``, which no real message has."""
MAX_MS = 30_000
"""Limited because a person and one of the web server's threads wait for it."""
PRIORITY = 4
MAX_CONCURRENT = 4
"""Limit for this process, whose other threads must accept messages."""
BUSY = "Too many tests run at once; try again in a moment."


@dataclass(frozen=True, slots=True)
class Probed:
    """One sample and its response."""

    webhook_id: str
    event_type: str
    body: bytes
    answer: Response

    @property
    def stored_response(self) -> StoredResponse:
        """The response as an attempt stores it."""
        return StoredResponse(self.answer.error, self.answer.headers, self.answer.excerpt)


def probe(consumer: ConsumerConfig, *, team_id: int | None) -> Probed:
    """Send a sample now, also to a paused consumer; takes up to `MAX_MS`.

    It does not affect limits or the circuit, and is not stored. ``team_id`` is the team of the
    person or key that asks. Raises Conflict for a pull consumer, and when its secrets are damaged;
    KeyUnavailable; RateLimited when `MAX_CONCURRENT` others, or one of the same team, wait for a
    response.
    """
    if not consumer.url:
        raise Conflict("not_push", "This is a pull consumer: it has no URL to send a sample to.")
    try:
        signer = config_cache.signer(consumer.id)
    except KeyUnavailable:
        raise
    except Unreadable:
        sentence = "The consumer's secrets are damaged; rotate its secret."
        raise Conflict("secrets_unreadable", sentence) from None
    with _turns.take(team_id):
        return _probe(consumer, signer)


def probe_address(
    url: str, channel: ChannelConfig, client_id: str, *, team_id: int | None
) -> Probed:
    """Send a sample to an address before it is registered, signed with a random secret.

    The address has passed core/networks.py; the resolved address is checked when the socket
    opens. Raises RateLimited like `probe`.
    """
    consumer = ConsumerConfig(
        id=0,
        client_id=client_id,
        channel_id=channel.id,
        channel_slug=channel.slug,
        mode="push",
        state="active",
        halted=False,
        url=url,
        event_types=(),
        timeout_ms=conf().timeout_ms,
        retry=backoff.resolve_rule(None, conf().max_attempts),
        rate=None,
        max_in_flight=1,
        team_id=None,
        version=0,
    )
    with _turns.take(team_id):
        return _probe(consumer, Signer(v1=((token_bytes(32), None),), v1a=(), headers=()))


class _Turns:
    """Limits the samples in progress; excess ones are rejected and do not wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = list[int | None]()

    @contextmanager
    def take(self, team_id: int | None) -> Iterator[None]:
        """Hold one of the few slots. Raises RateLimited."""
        with self._lock:
            theirs = team_id is not None and team_id in self._waiting
            if theirs or len(self._waiting) >= MAX_CONCURRENT:
                raise RateLimited("too_many_tests", BUSY)
            self._waiting.append(team_id)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.remove(team_id)


_turns = _Turns()


def sample(consumer: ConsumerConfig, now: datetime) -> tuple[str, bytes]:
    """Return a matching event type, and its example or a generated body."""
    described = EventType.objects.filter(channel_id=consumer.channel_id, example__isnull=False)
    for name in described.order_by("deprecated", "name").values_list("name", flat=True):
        if names.matches(consumer.event_types, name):
            return name, _json(described.get(name=name).example)
    chosen = next((name for name in consumer.event_types if names.event_type(name) is None), "")
    text = f"A sample for {consumer.client_id} on {consumer.channel_slug}; there is nothing to do."
    body = {"type": chosen or "test", "timestamp": times.text(now), "data": {"message": text}}
    return chosen, _json(body)


def _probe(consumer: ConsumerConfig, signer: Signer) -> Probed:
    now = clock.now()
    event_type, body = sample(consumer, now)
    mark = DeliveryMetadata(
        message_id=ids.to_public(PREFIX, new_id()),
        event_type=event_type,
        priority=PRIORITY,
        attempt=1,
        accepted_at=now,
        test=True,
    )
    hurried = replace(consumer, timeout_ms=min(consumer.timeout_ms, MAX_MS))
    payload = Payload("application/json", {}, body, len(body))
    answer = _send(payloads.call(consumer.id, hurried, signer, payload, mark, now))
    return Probed(mark.message_id, event_type, body, answer)


def _send(call: Call) -> Response:
    sender = payloads.sender(max_connections=1)
    try:
        sender.start(call)
        while not (answers := sender.take()):
            sender.ready(sender.next_timeout())
            sender.on_timer()
    finally:
        sender.close()
    return answers[0]


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
