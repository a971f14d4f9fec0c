"""The span of time that a job's options ask for."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1)}


def instant(text: str) -> datetime:
    """A day or an instant, UTC unless it says otherwise: ``2026-11-22T08:00``."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is neither a day nor an instant.") from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def beginning(text: str) -> datetime | timedelta:
    """An instant, or how long before the end: ``30d``, ``12h``."""
    number, unit = text[:-1], text[-1:]
    if unit in UNITS and number.isdecimal():
        return int(number) * UNITS[unit]
    return instant(text)


def checked(read: Callable[[str], object]) -> Callable[[str], str]:
    """For a command line: the text as it is, which ``read`` can read. Runs keep options as text."""

    def check(text: str) -> str:
        read(text)
        return text

    return check


def window(since: str, until: str | None, now: datetime) -> tuple[datetime, datetime]:
    """Beginning and end of what is asked for; never later than ``now``."""
    end = min(instant(until), now) if until else now
    begins = beginning(since)
    return (end - begins if isinstance(begins, timedelta) else begins), end


def utc(at: datetime) -> datetime:
    """The same instant in the zone that everything is written in."""
    return at.astimezone(UTC)
