"""Parse instants and durations: RFC 3339 or milliseconds, without guessing."""

import re
from datetime import UTC, datetime, timedelta

from channels_app.core.values import whole_number

DAY_MS = 86_400_000
MAX_DAYS = 10 * 366
MAX_DELAY_MS = MAX_DAYS * DAY_MS
"""Ten years: a later instant is taken for a mistake."""

_RFC_3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS = 946_684_800_000
"""2000-01-01. A smaller number was probably meant as seconds, and would lie far in the past."""
HOW = "Write an instant like 2027-01-31T08:00:00.000Z, or as milliseconds since 1970."


def instant(value: object) -> datetime:
    """The UTC instant of RFC 3339 text or integer milliseconds, rounded up to a microsecond.

    Raises ValueError with a sentence.
    """
    if isinstance(value, str):
        return _from_ms(int(value)) if _is_digits(value) else _from_text(value)
    number = whole_number(value)
    if number is None:
        raise ValueError(HOW)
    return _from_ms(number)


def soon(value: object, now: datetime, *, days: int = MAX_DAYS) -> datetime:
    """An instant rounded up to a millisecond, at most ``days`` after ``now``.

    Raises ValueError.
    """
    return near(ceil_ms(instant(value)), now, days)


def near(wanted: datetime, now: datetime, days: int) -> datetime:
    """Return ``wanted`` if it is at most ``days`` after ``now``. Raises ValueError."""
    if wanted - now > timedelta(days=days):
        raise ValueError(f"The instant is more than {days} days away, which is the maximum.")
    return wanted


def delay_ms(value: object, *, days: int = MAX_DAYS) -> int:
    """A delay in whole milliseconds, from 0 to ``days``. Raises ValueError with a sentence."""
    text = isinstance(value, str) and _is_digits(value)
    number = int(str(value)) if text else whole_number(value)
    if number is None:
        raise ValueError("A delay is a whole number of milliseconds.")
    if not 0 <= number <= days * DAY_MS:
        raise ValueError(f"A delay is between 0 and {days * DAY_MS} milliseconds.")
    return number


def floor_ms(value: datetime) -> datetime:
    """Round down to a millisecond, the precision of stored and returned instants."""
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def ceil_ms(value: datetime) -> datetime:
    """Round up to a millisecond."""
    floor = floor_ms(value)
    return floor if floor == value else floor + timedelta(milliseconds=1)


def text(value: datetime) -> str:
    """RFC 3339 with milliseconds in UTC, as the API writes every instant."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _is_digits(value: str) -> bool:
    return value.isascii() and value.isdecimal() and len(value) <= 15


def _from_ms(value: int) -> datetime:
    if value < _FIRST_MS:
        raise ValueError(
            "A number must be milliseconds since 1970, not seconds, and from the year 2000 on."
        )
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        raise ValueError(HOW) from None


def _from_text(value: str) -> datetime:
    match = _RFC_3339.fullmatch(value)
    if match is None:
        raise ValueError(HOW)
    day, clock, fraction, zone = match.groups()
    digits = (fraction or "").ljust(9, "0")
    # Round up: an event must not happen earlier than requested, even by a nanosecond.
    microseconds = int(digits[:6]) + (digits[6:] != "000")
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{zone.upper().replace('Z', '+00:00')}")
        return moment.astimezone(UTC) + timedelta(microseconds=microseconds)
    except (ValueError, OverflowError):
        raise ValueError(HOW) from None
