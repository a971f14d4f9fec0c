"""The last occurrences of a schedule and their results, as the few lines that its row keeps."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from channels_app.rules import times

FIRED = "fired"
RUN = "run"
"""By hand, beside the timetable."""
MISSED = "missed"
OVERLAPPED = "overlapped"
REFUSED = "refused"
RESULTS = (FIRED, RUN, MISSED, OVERLAPPED, REFUSED)
MAX_KEPT = 10
MAX_DETAIL_LENGTH = 300


def line(
    result: str,
    at: datetime,
    *,
    occurrence_at: datetime | None = None,
    message: str | None = None,
    count: int = 1,
    detail: str = "",
) -> dict[str, Any]:
    """One line: ``at`` it was decided; ``count`` occurrences, of which this was the first."""
    return {
        "result": result,
        "occurrence_at": times.text(occurrence_at) if occurrence_at else None,
        "at": times.text(at),
        "message": message,
        "count": count,
        "detail": detail[:MAX_DETAIL_LENGTH],
    }


def kept(recent: Sequence[dict[str, Any]], *lines: dict[str, Any]) -> list[dict[str, Any]]:
    """The newest KEPT lines, newest first, after ``lines`` in the order in which they came."""
    return [*reversed(lines), *recent][:MAX_KEPT]


def key(name: str, occurrence_at: datetime) -> str:
    """The idempotency key of an occurrence's message: whoever fires it, it is one message."""
    return f"schedule:{name}:{round(occurrence_at.timestamp() * 1000)}"


def run_key(name: str, number: int) -> str:
    """The same for one that somebody asked for."""
    return f"schedule:{name}:run:{number}"
