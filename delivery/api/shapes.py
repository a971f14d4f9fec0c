"""Represent messages, deliveries, attempts and replays in the API."""

import base64
import codecs
from datetime import datetime
from typing import Any

from channels_app.conf import conf
from channels_app.core import ids, times
from channels_app.models import Consumer, Message
from channels_app.registry import data_encryption
from channels_app.registry.cache import ConsumerConfig
from delivery import replay
from delivery.core.lifecycle import DeliveryState, shown_state
from delivery.core.timing import Roundtrip
from delivery.models import Attempt, Delivery, OrderingKey, Replay
from delivery.pull.receiving import ReceivedMessage
from delivery.transport import Response
from delivery.transport.test_delivery import Probed


def message(row: Message, channel: str, now: datetime) -> dict[str, Any]:
    """Represent a message in a list, without its body, headers and producer."""
    number = ids.to_public(ids.MESSAGE, row.id)
    return {
        "id": number,
        "channel": channel,
        "state": row.shown.value,
        "scheduled": row.is_scheduled(now),
        "event_type": row.event_type,
        "priority": row.priority,
        "ordering_key": row.ordering_key,
        "content_type": row.content_type,
        "body_bytes": row.body_bytes,
        "accepted_at": times.text(row.accepted_at),
        "due_at": times.text(row.due_at),
        "expires_at": _text(row.expires_at),
        "consumer_count": row.consumer_count,
        "version": row.version,
        "url": url(f"messages/{number}"),
        "body_url": url(f"messages/{number}/body"),
    }


def delivery(row: Delivery, channel: str, client_id: str) -> dict[str, Any]:
    """Represent a delivery without its attempts."""
    number = ids.to_public(ids.DELIVERY, row.id)
    waits = row.state == DeliveryState.QUEUED
    return {
        "id": number,
        "message_id": ids.to_public(ids.MESSAGE, row.message_id),
        "channel": channel,
        "consumer": client_id,
        "state": state(row),
        "reason": row.reason,
        "outcome": row.outcome,
        "status_code": row.status_code,
        "attempt_count": row.attempt_count,
        "failure_count": row.failure_count,
        "next_attempt_at": _text(row.next_at if waits else None),
        "held_until": _text(None if waits else row.due_at),
        "event_type": row.event_type,
        "priority": row.priority,
        "ordering_key": row.ordering_key,
        "replay_id": ids.to_public(ids.REPLAY, row.replay_id) if row.replay_id else None,
        "accepted_at": times.text(row.accepted_at),
        "expires_at": _text(row.expires_at),
        "finished_at": _text(row.finished_at),
        "url": url(f"deliveries/{number}"),
    }


def state(row: Delivery) -> str:
    """Return the state's name in the API."""
    return shown_state(DeliveryState(row.state), row.failure_count, row.attempt_count)


def attempt(row: Attempt, *, for_operator: bool, may_open: bool) -> dict[str, Any]:
    """Represent one attempt.

    Its response is for callers who may read the body, which a response may repeat; the process that
    made the attempt is for operators.
    """
    # A worker's error message about an encrypted body is stored with the response.
    answer = row.answer if may_open else data_encryption.StoredResponse(row.error, "", b"")
    shown = {
        "id": ids.to_public(ids.ATTEMPT, row.id),
        "number": row.number,
        "started_at": times.text(row.started_at),
        "outcome": row.outcome,
        "status_code": row.status_code,
        "error": answer.error,
        "connect_ms": row.connect_ms,
        "first_byte_ms": row.first_byte_ms,
        "total_ms": row.total_ms,
        "remote_address": row.remote_address,
        "response": response(answer.headers, answer.body) if may_open else None,
    }
    return shown | ({"worker": row.worker} if for_operator else {})


def roundtrip(found: Roundtrip | None) -> dict[str, Any] | None:
    """Return how long each phase of a delivered message took."""
    if found is None:
        return None
    return {
        "accepted_at": times.text(found.accepted_at),
        "leased_at": times.text(found.leased_at),
        "sent_at": times.text(found.sent_at),
        "responded_at": times.text(found.responded_at),
        "acknowledged_at": times.text(found.acknowledged_at),
        **{f"{part.name}_ms": round(part.ms, 3) for part in found.parts},
        "total_ms": round(found.total_ms, 3),
    }


def response(headers: str, excerpt: bytes) -> dict[str, Any]:
    """Represent the beginning of a response: as text if it is UTF-8, else in base64."""
    try:
        # The excerpt may end within a character.
        return {"headers": headers, "body": codecs.utf_8_decode(excerpt, "strict", False)[0]}
    except UnicodeDecodeError:
        return {"headers": headers, "body_base64": base64.b64encode(excerpt).decode()}


def replayed(row: Replay) -> dict[str, Any]:
    """Represent a replay with its progress."""
    number = ids.to_public(ids.REPLAY, row.id)
    missing = row.filter.get("kind") == "missing"
    return {
        "id": number,
        "kind": "backfill" if missing else "replay",
        "state": row.state,
        "filter": replay.shown(row.filter),
        "matched_count": max(row.matched_count, row.replayed_count),
        "replayed_count": row.replayed_count,
        "rate_per_second": row.rate_per_second,
        "reason": row.reason,
        "requested_by": row.requested_by,
        "created_at": times.text(row.created_at),
        "finished_at": _text(row.finished_at),
        "url": url(f"replays/{number}"),
    }


def key_row(row: OrderingKey, consumer: Consumer, most_per_second: float | None) -> dict[str, Any]:
    """Represent an ordering key with the maximum rate of the consumer's keys."""
    number, channel = ids.to_public(ids.ORDERING_KEY, row.id), consumer.channel.slug
    state = "paused" if row.paused_at else "blocked" if row.blocked_at else "open"
    return {
        "id": number,
        "channel": channel,
        "consumer": consumer.client_id,
        "ordering_key": row.ordering_key,
        "state": state,
        "head": None if row.head_id is None else ids.to_public(ids.DELIVERY, row.head_id),
        "head_at": times.text(row.head_at),
        "waiting_count": row.waiting_count,
        "most_per_second": most_per_second and round(most_per_second, 3),
        "paused_at": _text(row.paused_at),
        "blocked_at": _text(row.blocked_at),
        "url": url(f"channels/{channel}/consumers/{consumer.client_id}/ordering-keys/{number}"),
    }


def probed(found: Probed) -> dict[str, Any]:
    """Represent a test delivery with the consumer's response."""
    came: Response = found.answer
    return {
        "webhook_id": found.webhook_id,
        "event_type": found.event_type,
        "body": found.body.decode(),
        "delivered": came.outcome.is_success,
        "outcome": came.outcome.value,
        "status_code": came.status,
        "error": came.error,
        "connect_ms": came.connect_ms,
        "first_byte_ms": came.first_byte_ms,
        "total_ms": came.total_ms,
        "remote_address": came.remote_address,
        "response": response(came.headers, came.excerpt),
    }


def received_message(
    one: ReceivedMessage, view: ConsumerConfig, *, settled: bool
) -> dict[str, Any]:
    """Represent a received message; without a lease if it is settled on receipt."""
    row, payload = one.row, one.payload
    message = ids.to_public(ids.MESSAGE, row.message_id)
    return {
        "id": message,
        "delivery_id": ids.to_public(ids.DELIVERY, row.id),
        "lease": None if settled else one.token,
        "lease_expires_at": None if settled else times.text(row.lease_until),
        "attempt": row.tries,
        "max_attempts": view.retry_for(row.event_type).max_attempts,
        "event_type": row.event_type,
        "priority": row.priority,
        "ordering_key": row.ordering_key,
        "replay": row.replayed,
        "accepted_at": times.text(row.accepted_at),
        "content_type": payload.content_type,
        "headers": payload.headers,
        **_body(payload.body, message),
    }


def _body(body: bytes | None, message: str) -> dict[str, str]:
    if body is None:
        return {"body_url": url(f"messages/{message}/body")}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def url(path: str) -> str:
    """Return the absolute URL of an API path."""
    return f"{conf().public_url}/api/v1/{path}"


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else times.text(instant)
