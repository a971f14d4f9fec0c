"""Timeline: what happened to a delivery, attempt by attempt, as people read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

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
    answer: str = ""
    """The answer's first bytes as text."""


def moments(delivery: Delivery) -> Sequence[Moment]:
    """From accepted to now; attempts beyond MOST_SHOWN are left out, oldest first."""
    newest = delivery.attempts.order_by("-number")[:MOST_SHOWN]
    attempts = [_of(attempt) for attempt in reversed(newest)]
    return [Moment("calm", "Accepted", delivery.accepted_at), *attempts, *_ahead(delivery)]


def _of(attempt: Attempt) -> Moment:
    outcome = Outcome(attempt.outcome)
    tone = "good" if outcome.is_success else "bad" if outcome.charged else "wait"
    return Moment(
        tone=tone,
        title=outcome.value.replace("_", " "),
        at=attempt.started_at,
        detail=attempt.error,
        timings=timings(attempt),
        attempt=attempt,
        answer=bytes(attempt.answer_excerpt).decode("utf-8", errors="replace"),
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
    return [Moment("wait", "Next", delivery.due_at, "Not sent before this instant.")]
