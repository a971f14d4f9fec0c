"""Show what happened to a delivery, attempt by attempt."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from delivery.admin import request
from delivery.models import Attempt, Delivery
from delivery.rules.outcome import Outcome

MAX_SHOWN = 50
"""Attempts on the page, the newest ones."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """An attempt, the acceptance of the message, or the next step."""

    tone: str
    title: str
    at: datetime | None
    detail: str = ""
    """One sentence."""
    timings: str = ""
    attempt: Attempt | None = None
    request: str = ""
    """The request without its body."""
    answer: str = ""
    """Status line, headers and the first bytes of the response as text."""


def moments(delivery: Delivery, *, hidden: str) -> Sequence[TimelineEvent]:
    """Return events from acceptance until now; the oldest attempts beyond MAX_SHOWN are left out.

    ``hidden`` explains why headers and responses are hidden, since they may repeat the request; ''
    shows them.
    """
    newest = delivery.attempts.order_by("-number")[:MAX_SHOWN]
    attempts = [_of(delivery, attempt, hidden=hidden) for attempt in reversed(newest)]
    return [TimelineEvent("calm", "Accepted", delivery.accepted_at), *attempts, *_ahead(delivery)]


def _of(delivery: Delivery, attempt: Attempt, *, hidden: str) -> TimelineEvent:
    outcome, response = Outcome(attempt.outcome), attempt.answer
    excerpt, headers = response.body.decode("utf-8", errors="replace"), response.headers.strip()
    sent = request.text(delivery, delivery.message, delivery.consumer, attempt.started_at)
    if hidden:
        sent, headers = hidden, ""
        excerpt = hidden if excerpt else ""
    return TimelineEvent(
        tone=outcome.tone,
        title=outcome.words,
        at=attempt.started_at,
        # The worker's message about an encrypted body is part of the response.
        detail=attempt.error if hidden else response.error,
        timings=timings(attempt),
        attempt=attempt,
        request=sent,
        answer="\n\n".join(part for part in (headers, excerpt) if part),
    )


def timings(attempt: Attempt) -> str:
    """Describe its duration and phases."""
    parts = [
        f"{name} {value} ms"
        for name, value in (("connect", attempt.connect_ms), ("first byte", attempt.first_byte_ms))
        if value is not None
    ]
    return ", ".join([*parts, f"total {attempt.total_ms} ms"])


def _ahead(delivery: Delivery) -> list[TimelineEvent]:
    if delivery.due_at is None:
        return []
    if delivery.state == "in_flight":
        return [TimelineEvent("wait", "In flight", delivery.due_at, "Its worker has until then.")]
    if delivery.state == "awaiting_ack":
        return [
            TimelineEvent("wait", "Awaits its ack", delivery.due_at, "The consumer has until then.")
        ]
    if delivery.is_behind:
        return [
            TimelineEvent(
                "wait", "Next", None, "It waits for an earlier delivery of its ordering key."
            )
        ]
    return [TimelineEvent("wait", "Next", delivery.due_at, "Not sent before this instant.")]
