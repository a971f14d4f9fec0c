"""Timeline: what happened to a delivery, attempt by attempt, as people read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from channels_app.admin import body
from delivery.admin import request
from delivery.models import Attempt, Delivery
from delivery.rules.outcome import Outcome

MOST_SHOWN = 50
"""Attempts on the page; the newest are the ones that matter."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One attempt, or the beginning, or what is to come."""

    tone: str
    title: str
    at: datetime | None
    detail: str = ""
    """One sentence."""
    timings: str = ""
    attempt: Attempt | None = None
    request: str = ""
    """What was sent, but for the body."""
    answer: str = ""
    """Status line, headers and the first bytes of the answer as text."""


def moments(delivery: Delivery, *, may_see: bool) -> Sequence[Moment]:
    """From accepted to now; attempts beyond MOST_SHOWN are left out, oldest first.

    ``may_see`` says whether what consumers answered is shown, which may repeat what was sent.
    """
    newest = delivery.attempts.order_by("-number")[:MOST_SHOWN]
    attempts = [_of(delivery, attempt, may_see=may_see) for attempt in reversed(newest)]
    return [Moment("calm", "Accepted", delivery.accepted_at), *attempts, *_ahead(delivery)]


def _of(delivery: Delivery, attempt: Attempt, *, may_see: bool) -> Moment:
    outcome = Outcome(attempt.outcome)
    excerpt = bytes(attempt.answer_excerpt).decode("utf-8", errors="replace")
    if excerpt and not may_see:
        excerpt = body.HIDDEN
    return Moment(
        tone=outcome.tone,
        title=outcome.words,
        at=attempt.started_at,
        detail=attempt.error,
        timings=timings(attempt),
        attempt=attempt,
        request=request.text(delivery, delivery.message, delivery.consumer, attempt.started_at),
        answer="\n\n".join(part for part in (attempt.answer_headers.strip(), excerpt) if part),
    )


def timings(attempt: Attempt) -> str:
    """How long it took and where the time went."""
    parts = [
        f"{name} {value} ms"
        for name, value in (("connect", attempt.connect_ms), ("first byte", attempt.first_byte_ms))
        if value is not None
    ]
    return ", ".join([*parts, f"total {attempt.total_ms} ms"])


def _ahead(delivery: Delivery) -> list[Moment]:
    if delivery.due_at is None:
        return []
    if delivery.state == "in_flight":
        return [Moment("wait", "In flight", delivery.due_at, "Its worker has until then.")]
    if delivery.state == "awaiting_ack":
        return [Moment("wait", "Awaits its ack", delivery.due_at, "The consumer has until then.")]
    if delivery.is_behind:
        return [Moment("wait", "Next", None, "It waits for an earlier one of its ordering key.")]
    return [Moment("wait", "Next", delivery.due_at, "Not sent before this instant.")]
