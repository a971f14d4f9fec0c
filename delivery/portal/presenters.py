"""Present deliveries, requests, responses and code samples to templates."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from channels_app.conf import conf
from channels_app.core import body_preview, http
from channels_app.core.body_preview import Shown
from channels_app.core.encryption import Unreadable
from channels_app.core.values import MASK
from channels_app.models import Consumer, EventType, Message
from channels_app.registry.cache import Signer, config_cache
from delivery.core import lifecycle
from delivery.core.code_samples import MASKED, Snippet, receiving, snippets
from delivery.core.lifecycle import DeliveryState
from delivery.core.outcome import Outcome
from delivery.models import Attempt, ConsumerHealth, Delivery
from delivery.portal import policy
from delivery.transport import payloads
from delivery.transport.payloads import DeliveryMetadata
from delivery.transport.test_delivery import Probed

SIGNATURE = "webhook-signature"
_UNSIGNED = Signer(v1=(), v1a=(), headers=())
HINTS = {
    Outcome.BLOCKED_ADDRESS: "The name resolves to an address that may not be called.",
    Outcome.DNS_ERROR: "The host name is not known.",
    Outcome.CONNECTION_REFUSED: "Nothing listens there. Is the program running? Is the port right?",
    Outcome.CONNECT_TIMEOUT: "No connection. Does a firewall block it?",
    Outcome.TIMEOUT: "The response took too long. Respond first and do the work afterwards.",
    Outcome.TLS_ERROR: "The certificate is not valid for this host.",
    Outcome.REDIRECT: "Redirects are not followed: register the address that it leads to.",
    Outcome.NOT_FOUND: "The server responds, but the path does not exist.",
    Outcome.GONE: "410 means that it wants no more messages, so we stop sending.",
    Outcome.INTEGRITY_ERROR: "Nothing was sent. The operator has to find out who changed it.",
    Outcome.THROTTLED: "It asks us to slow down.",
}
BEHIND = "It waits for an earlier delivery of its ordering key."


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
    config = policy.config_of(webhook)
    signer = _signer(webhook)
    mark = _stamp(row, row.message)
    shown = payloads.call(row.id, config, signer, payload, mark, at)
    fresh = payloads.call(row.id, config, signer, payload, mark, now)
    line = http.line(webhook.url, _presentable(fresh.headers, sign=sign), payload.body)
    return Sent(
        headers=_presentable(shown.headers, sign=False),
        body=body_preview.show(payload.body, payload.content_type),
        curl=line,
    )


@dataclass(frozen=True, slots=True)
class ResponseView:
    """A response, or why there is none."""

    is_success: bool
    outcome: str
    status: int | None
    error: str
    hint: str
    total_ms: int
    connect_ms: int | None
    first_byte_ms: int | None
    remote_address: str
    headers: str
    body: Shown


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One point of a delivery's timeline."""

    tone: str
    title: str
    at: datetime | None
    note: str = ""
    answer: ResponseView | None = None
    number: int = 0


def event_type(row: EventType) -> dict[str, Any]:
    """Represent an event type with schema and example as text."""
    return {
        "name": row.name,
        "description": row.description,
        "deprecated": row.deprecated,
        "schema": _json(row.schema),
        "example": _json(row.example),
    }


def probed(probe: Probed) -> dict[str, Any]:
    """Represent a test delivery and its response."""
    came = probe.answer
    return {
        "event_type": probe.event_type,
        "webhook_id": probe.webhook_id,
        "sent": body_preview.show(probe.body),
        "answer": ResponseView(
            is_success=came.outcome.is_success,
            outcome=came.outcome.value,
            status=came.status,
            error=came.error,
            hint=HINTS.get(came.outcome, ""),
            total_ms=came.total_ms,
            connect_ms=came.connect_ms,
            first_byte_ms=came.first_byte_ms,
            remote_address=came.remote_address,
            headers=came.headers.strip(),
            body=body_preview.show(came.excerpt),
        ),
    }


def attempt(row: Attempt) -> ResponseView:
    """Represent one attempt's response."""
    outcome, response = Outcome(row.outcome), row.answer
    return ResponseView(
        is_success=outcome.is_success,
        outcome=outcome.value,
        status=row.status_code,
        error=response.error,
        hint=HINTS.get(outcome, ""),
        total_ms=row.total_ms,
        connect_ms=row.connect_ms,
        first_byte_ms=row.first_byte_ms,
        remote_address=row.remote_address,
        headers=response.headers.strip(),
        body=body_preview.show(response.body),
    )


def delivery(row: Delivery) -> dict[str, Any]:
    """Represent a delivery in a list."""
    return {
        "id": str(row),
        "state": state(row.shown),
        "tone": tone(row),
        "event_type": row.event_type,
        "outcome": words(row.outcome),
        "status": row.status_code,
        "attempts": row.attempt_count,
        "accepted_at": row.accepted_at,
        "next_at": row.next_attempt_at,
    }


def words(name: str) -> str:
    """Return an identifier as words."""
    return name.replace("_", " ")


def state(shown: str) -> str:
    """Return a state, as the API shows it, in words; a retry is called retry."""
    retries = {"Retry-Delivery": "retrying", "Retry-In-flight": "retrying now"}
    return retries.get(shown, shown.lower())


def tone(row: Delivery) -> str:
    """Return the colour of its state."""
    return lifecycle.tone(DeliveryState(row.state), row.failure_count)


def timeline(row: Delivery, attempts: Sequence[Attempt], *, hidden: bool) -> list[TimelineEvent]:
    """Return events from acceptance to the next step; without responses if ``hidden``."""
    moments = [TimelineEvent("calm", "Accepted", row.accepted_at)]
    for entry in attempts:
        answer = None if hidden else attempt(entry)
        error = answer.error if answer else entry.error
        outcome = Outcome(entry.outcome)
        moments.append(
            TimelineEvent(
                outcome.tone, outcome.words, entry.started_at, error, answer, number=entry.number
            )
        )
    if row.state == DeliveryState.QUEUED:
        note = BEHIND if row.is_behind else "Not before this instant."
        moments.append(TimelineEvent("busy", "Next attempt", row.next_at, note))
    elif row.state == DeliveryState.AWAITING_ACK:
        moments.append(
            TimelineEvent("busy", "Awaits its acknowledgement", row.due_at, "Until then.")
        )
    elif row.state == DeliveryState.IN_FLIGHT and (row.lease_owner or 0) < 0:
        moments.append(TimelineEvent("busy", "A worker has it", row.due_at, "Its lease ends then."))
    elif row.state == DeliveryState.IN_FLIGHT:
        moments.append(TimelineEvent("busy", "In flight", None, "An attempt is under way."))
    elif row.state != DeliveryState.DELIVERED:
        note = {"dead": "Dead. A replay sends it again."}.get(row.state, "")
        moments.append(
            TimelineEvent(tone(row), f"{row.state} ({row.reason})", row.finished_at, note)
        )
    return moments


def last_outcome(webhook: Consumer) -> str:
    """Return the outcome of the last attempt in words; '' before the first one."""
    health: ConsumerHealth | None = getattr(webhook, "health", None)
    return words(health.last_outcome) if health else ""


def code_for(webhook: Consumer, secret: str = MASKED) -> list[Snippet]:
    """Return code to verify a push consumer's requests, or to receive for a pull consumer."""
    if webhook.mode == Consumer.Mode.PULL:
        api = f"{conf().public_url}/api/v1"
        return receiving(api, webhook.channel.slug, webhook.client_id)
    return snippets(webhook.url, secret)


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


def _json(value: Any) -> str:
    return "" if value is None else json.dumps(value, indent=2, ensure_ascii=False)
