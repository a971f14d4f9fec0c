"""Show the request of a delivery as its consumer receives it, and as a curl command."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from channels_app.config_cache import Signer, config_cache
from channels_app.models import Consumer, Message
from channels_app.rules import body_preview, curl
from channels_app.rules.body_preview import Shown
from channels_app.rules.encryption import Unreadable
from channels_app.rules.fields import MASK
from delivery.models import Delivery
from delivery.runtime import outgoing
from delivery.runtime.outgoing import DeliveryMetadata
from delivery.steps import payloads
from delivery.ui import policy

SIGNATURE = "webhook-signature"
_UNSIGNED = Signer(v1=(), v1a=(), headers=())


@dataclass(frozen=True, slots=True)
class Sent:
    """The request, as far as the member may see it."""

    headers: Sequence[tuple[str, str]] = ()
    body: Shown | None = None
    error: str = ""
    """Why the body is hidden."""
    curl: str = ""
    """A curl command, signed for now if the member may send."""


def build(webhook: Consumer, row: Delivery, *, at: datetime, now: datetime, sign: bool) -> Sent:
    """Build the request of an attempt made ``at``; with ``sign`` its curl command is valid now."""
    payload = payloads.load([row.message_id]).get(row.message_id)
    if payload is None or payload.body is None:
        return Sent(error=payload.error if payload else "The message was deleted.")
    view = policy.view_of(webhook)
    signer = _signer(webhook)
    mark = _stamp(row, row.message)
    shown = outgoing.call(row.id, view, signer, payload, mark, at)
    fresh = outgoing.call(row.id, view, signer, payload, mark, now)
    line = curl.line(webhook.url, _presentable(fresh.headers, sign=sign), payload.body)
    return Sent(
        headers=_presentable(shown.headers, sign=False),
        body=body_preview.show(payload.body, payload.content_type),
        curl=line,
    )


def _signer(webhook: Consumer) -> Signer:
    """Return the webhook's signer with its own headers masked: they may contain credentials."""
    try:
        signer = config_cache.signer(webhook.id)
    except Unreadable:
        return _UNSIGNED
    return replace(signer, headers=tuple((name, MASK) for name, _ in signer.headers))


def _stamp(row: Delivery, message: Message) -> DeliveryMetadata:
    return DeliveryMetadata(
        message_id=str(message),
        event_type=row.event_type,
        priority=row.priority,
        attempt=max(1, row.failure_count + (row.state == "queued")),
        accepted_at=row.accepted_at,
        ordering_key=row.ordering_key,
        replay=row.replay_id is not None,
    )


def _presentable(headers: Sequence[tuple[str, str]], *, sign: bool) -> list[tuple[str, str]]:
    """Shorten signatures for members who may only view, so that a consumer rejects copies."""
    return [
        (name, _cut(value) if name == SIGNATURE and not sign else value) for name, value in headers
    ]


def _cut(signatures: str) -> str:
    return " ".join(f"{token[:9]}..." for token in signatures.split())
