"""Build the request of an attempt, and the sender for it."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from channels_app.conf import conf as site
from channels_app.config_cache import ConsumerConfig, Signer
from channels_app.rules import ids
from delivery.conf import conf
from delivery.rules import envelope, signing
from delivery.rules.claimed import ClaimedDelivery
from delivery.steps import acknowledge
from delivery.steps.payloads import Payload
from delivery.steps.send import Call, Sender


def sender(max_connections: int) -> Sender:
    """Return a sender with this installation's limits; keeps at most ``max_connections`` open."""
    return Sender(
        allowed=conf().allowed_targets,
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
    view: ConsumerConfig,
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
        url=view.url,
        headers=envelope.build(
            envelope.Envelope(
                message_id=mark.message_id,
                timestamp=timestamp,
                signature=_signatures(signer, mark.message_id, timestamp, payload.body, now),
                content_type=payload.content_type,
                channel=view.channel_slug,
                consumer=view.client_id,
                event_type=mark.event_type,
                priority=mark.priority,
                attempt=mark.attempt,
                max_attempts=view.retry_for(mark.event_type).max_attempts,
                accepted_at=mark.accepted_at,
                ordering_key=mark.ordering_key,
                ack_url=_ack_url(view, mark),
                replay=mark.replay,
                test=mark.test,
                user_agent=conf().user_agent,
                forwarded=payload.headers,
                static=dict(signer.headers),
            )
        ),
        body=payload.body,
        timeout_ms=view.timeout_ms,
        connect_timeout_ms=min(conf().connect_timeout_ms, view.timeout_ms),
    )


def _ack_url(view: ConsumerConfig, mark: DeliveryMetadata) -> str:
    if not (view.ack and view.ack["mode"] == "callback" and mark.delivery_id):
        return ""
    return f"{site().public_url}/acks/{acknowledge.token(mark.delivery_id)}"


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
