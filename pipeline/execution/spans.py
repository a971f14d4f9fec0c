"""Parse the time range of a job's options."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1)}


def instant(text: str) -> datetime:
    """Parse a day or an instant, by default in UTC: ``2026-11-22T08:00``."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is neither a day nor an instant.") from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def beginning(text: str) -> datetime | timedelta:
    """Parse an instant, or a period before the end: ``30d``, ``12h``."""
    number, unit = text[:-1], text[-1:]
    if unit in UNITS and number.isdecimal():
        return int(number) * UNITS[unit]
    return instant(text)


def checked(read: Callable[[str], object]) -> Callable[[str], str]:
    """Return an argument type that checks a text with ``read`` and keeps it, as runs store text."""

    def check(text: str) -> str:
        read(text)
        return text

    return check


def window(since: str, until: str | None, now: datetime) -> tuple[datetime, datetime]:
    """Return beginning and end of the requested range; never later than ``now``."""
    end = min(instant(until), now) if until else now
    begins = beginning(since)
    return (end - begins if isinstance(begins, timedelta) else begins), end


def utc(at: datetime) -> datetime:
    """Convert an instant to UTC."""
    return at.astimezone(UTC)
