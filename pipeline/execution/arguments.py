"""Parse options that several jobs share."""

import re
from datetime import UTC, datetime, timedelta

from pipeline.broker import tables
from pipeline.execution.job import Refused

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
LENGTH = re.compile(r"(\d+)([smhd])")
WHEN = "an instant (2026-03-01, 2026-03-01T08:00:00Z) or how long ago (30m, 2h, 7d)"


def instant(text: str, now: datetime) -> datetime:
    """Parse an instant, by default in UTC; ``now`` is the database's time. Raises Refused."""
    if LENGTH.fullmatch(text):
        return now - length(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(f"{text!r} is not {WHEN}.") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def length(text: str) -> timedelta:
    """Parse a period: ``90s``, ``10m``, ``2h``, ``7d``. Raises Refused."""
    found = LENGTH.fullmatch(text)
    if found is None:
        raise Refused(f"{text!r} is no length of time like 90s, 10m, 2h or 7d.")
    return timedelta(**{UNITS[found[2]]: int(found[1])})


def message(text: str) -> int:
    """Return the key of ``msg_...``. Raises Refused."""
    key = tables.key_of("msg", text)
    if key is None:
        raise Refused(f"{text!r} is no id of a message, like msg_0cz9k3v8m0001.")
    return key
