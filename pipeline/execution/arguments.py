"""Parse options that several jobs share. Instants are in UTC unless they name another zone.

Options with a relative time are parsed when the job runs, by the database's clock. The others are
checked on the command line, and kept as text, as runs store it.
"""

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from pipeline.broker import tables
from pipeline.execution.job import JobError

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
PERIOD = re.compile(r"(\d+)([smhd])")
LONG_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1)}
WHEN = "an instant (2026-03-01, 2026-03-01T08:00:00Z) or how long ago (30m, 2h, 7d)"


def instant_or_ago(text: str, now: datetime) -> datetime:
    """Parse an instant, or how long before ``now`` it was. Raises JobError."""
    if PERIOD.fullmatch(text):
        return now - period(text)
    try:
        return _instant(text)
    except ValueError:
        raise JobError(f"{text!r} is not {WHEN}.") from None


def period(text: str) -> timedelta:
    """Parse a period: ``90s``, ``10m``, ``2h``, ``7d``. Raises JobError."""
    match = PERIOD.fullmatch(text)
    if match is None:
        raise JobError(f"{text!r} is no length of time like 90s, 10m, 2h or 7d.")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


def message_key(text: str) -> int:
    """Return the key of ``msg_...``. Raises JobError."""
    key = tables.parse_id("msg", text)
    if key is None:
        raise JobError(f"{text!r} is no id of a message, like msg_0cz9k3v8m0001.")
    return key


def instant(text: str) -> datetime:
    """Parse a day or an instant: ``2026-11-22T08:00``. Raises ArgumentTypeError."""
    try:
        return _instant(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is neither a day nor an instant.") from None


def instant_or_period(text: str) -> datetime | timedelta:
    """Parse an instant, or a period before the end: ``30d``, ``12h``. Raises ArgumentTypeError."""
    number, unit = text[:-1], text[-1:]
    if unit in LONG_UNITS and number.isdecimal():
        return int(number) * LONG_UNITS[unit]
    return instant(text)


def checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Return an argument type that checks a text with ``parse`` and keeps the text."""

    def check(text: str) -> str:
        parse(text)
        return text

    return check


def time_range(since: str, until: str | None, now: datetime) -> tuple[datetime, datetime]:
    """Return beginning and end of the requested range; never later than ``now``."""
    end = min(instant(until), now) if until else now
    begins = instant_or_period(since)
    return (end - begins if isinstance(begins, timedelta) else begins), end


def _instant(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)
