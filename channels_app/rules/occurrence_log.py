"""Format the last occurrences of a schedule and their results as the lines that its row stores."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from channels_app.rules import times

FIRED = "fired"
RUN = "run"
"""Started by hand, outside the timetable."""
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
    """One line: decided ``at``; stands for ``count`` occurrences from ``occurrence_at`` on."""
    return {
        "result": result,
        "occurrence_at": times.text(occurrence_at) if occurrence_at else None,
        "at": times.text(at),
        "message": message,
        "count": count,
        "detail": detail[:MAX_DETAIL_LENGTH],
    }


def kept(recent: Sequence[dict[str, Any]], *lines: dict[str, Any]) -> list[dict[str, Any]]:
    """The newest MAX_KEPT lines, newest first; ``lines`` are new, oldest first."""
    return [*reversed(lines), *recent][:MAX_KEPT]


def key(name: str, occurrence_at: datetime) -> str:
    """The idempotency key of an occurrence's message: a repeated firing stores nothing twice."""
    return f"schedule:{name}:{round(occurrence_at.timestamp() * 1000)}"


def run_key(name: str, number: int) -> str:
    """The same for an occurrence that was started by hand."""
    return f"schedule:{name}:run:{number}"
