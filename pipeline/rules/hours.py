"""Hours: the windows that reports are made of; all of it is UTC."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
HOUR_S = 3600
DAY_S = 86_400


def parse(text: str) -> datetime:
    """An ISO instant or date; UTC unless it says otherwise. Raises ValueError."""
    at = datetime.fromisoformat(text)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def valid(text: str) -> str:
    """The same text, if it is an instant: for options, which are kept as they were typed."""
    parse(text)
    return text


def floor(at: datetime) -> datetime:
    """The beginning of its hour."""
    return at.replace(minute=0, second=0, microsecond=0)


def midnight(at: datetime) -> datetime:
    """The beginning of its day."""
    return floor(at).replace(hour=0)


def window(
    since: str | None, until: str | None, bound: datetime, usual: timedelta
) -> tuple[datetime, datetime]:
    """Whole hours from ``since`` up to ``until``, none of them beyond ``bound``.

    An hour that has begun at ``since`` is in it; one that has not ended at ``until`` is not.
    """
    end = floor(min(parse(until), bound) if until else bound)
    return floor(parse(since)) if since else end - usual, end


def days(since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    """The parts of a window that lie in each day."""
    while since < until:
        end = min(midnight(since) + DAY, until)
        yield since, end
        since = end


def spans(numbers: list[int]) -> list[tuple[int, int]]:
    """Neighbours together: first and last of each row of numbers without a gap."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found
