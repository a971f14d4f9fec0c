"""Divide time into the hours and days of reports, in UTC."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
HOUR_S = 3600
DAY_S = 86_400


def parse(text: str) -> datetime:
    """Parse an ISO instant or date, by default in UTC. Raises ValueError."""
    at = datetime.fromisoformat(text)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def valid(text: str) -> str:
    """Return the text if it is an instant; for options, which are stored as typed."""
    parse(text)
    return text


def utc(at: datetime) -> datetime:
    """Convert an instant to UTC."""
    return at.astimezone(UTC)


def floor(at: datetime) -> datetime:
    """Return the beginning of the hour."""
    return at.replace(minute=0, second=0, microsecond=0)


def midnight(at: datetime) -> datetime:
    """Return the beginning of the day."""
    return floor(at).replace(hour=0)


def window(
    since: str | None, until: str | None, bound: datetime, usual: timedelta
) -> tuple[datetime, datetime]:
    """Return whole hours from ``since`` up to ``until``, none of them after ``bound``.

    The hour that contains ``since`` is included; the one that contains ``until`` is not.
    """
    end = floor(min(parse(until), bound) if until else bound)
    return floor(parse(since)) if since else end - usual, end


def days(since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield the parts of a window in each day."""
    while since < until:
        end = min(midnight(since) + DAY, until)
        yield since, end
        since = end


def spans(numbers: list[int]) -> list[tuple[int, int]]:
    """Return the first and last number of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs
