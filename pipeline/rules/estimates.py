"""Estimate the load of a coming hour from the same hour of earlier weeks.

If no earlier week is known, the estimate uses the same hour of earlier days, and else the mean of
all known hours.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
WEEK = timedelta(days=7)
FACTOR = 5
"""A load so many times the usual one is hot."""
EVERYTHING = "*"


class Basis(StrEnum):
    """Basis of an estimate. Stored and shown."""

    WEEKS = "weeks"
    """The same weekday and hour."""
    DAYS = "days"
    """The same hour on any day."""
    MEAN = "mean"
    """The mean of all known hours."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Load:
    """Load in some period; an estimate may be half a message."""

    messages: float = 0.0
    deliveries: float = 0.0
    bytes: float = 0.0
    """Bytes of bodies, counted once for each delivery."""

    def __add__(self, other: "Load") -> "Load":
        return Load(
            self.messages + other.messages,
            self.deliveries + other.deliveries,
            self.bytes + other.bytes,
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected load, and the range of the samples."""

    load: Load
    low: float = 0.0
    """Messages of the lowest sample."""
    high: float = 0.0
    """Messages of the highest sample."""
    samples: int = 0
    basis: Basis = Basis.NOTHING


IDLE = Load()
NONE = Estimate(IDLE)
Hours = Mapping[datetime, Load]


def estimate(
    hours: Hours, at: datetime, *, since: datetime, until: datetime, weeks: int
) -> Estimate:
    """Estimate the hour that begins ``at``, for one channel.

    Its ``hours`` are known from ``since`` up to ``until``; an hour missing in between had no load.
    """
    for basis, step, most in ((Basis.WEEKS, WEEK, weeks), (Basis.DAYS, DAY, 7 * weeks)):
        places = (at - step * number for number in range(1, most + 1))
        samples = [hours.get(place, IDLE) for place in places if since <= place < until]
        if samples:
            return _of(samples, middle(samples), basis)
    known = round((until - since) / HOUR)
    if known < 1:
        return NONE
    samples = [hours.get(since + HOUR * number, IDLE) for number in range(known)]
    whole = sum(samples, IDLE)
    return _of(
        samples,
        Load(whole.messages / known, whole.deliveries / known, whole.bytes / known),
        Basis.MEAN,
    )


def middle(loads: Sequence[Load]) -> Load:
    """Return the median of each amount."""
    return Load(
        median(load.messages for load in loads),
        median(load.deliveries for load in loads),
        median(load.bytes for load in loads),
    )


def larger(one: Load, other: Load) -> Load:
    """Return the larger of each amount."""
    return Load(
        max(one.messages, other.messages),
        max(one.deliveries, other.deliveries),
        max(one.bytes, other.bytes),
    )


def threshold(usual: Sequence[float]) -> float:
    """Return the amount above which one of these is hot, with a minimum for quiet channels."""
    return FACTOR * max(1.0, median(usual) if usual else 0.0)


def workers(per_second: float, rate: float) -> int:
    """Return how many pumps deliver so many a second at ``rate`` each; at least one."""
    return max(1, math.ceil(per_second / rate))


def errors(pairs: Iterable[tuple[float, float]]) -> tuple[float | None, float | None]:
    """Return the errors of forecasts, for pairs of actual and forecast values.

    The first is the sum of the errors divided by the sum of actual values. The second is the mean
    relative error of the hours with an actual value. Both are None if there are none.
    """
    known = list(pairs)
    whole = sum(came for came, _ in known)
    if not whole:
        return None, None
    shares = [abs(came - said) / came for came, said in known if came]
    return sum(abs(came - said) for came, said in known) / whole, sum(shares) / len(shares)


def wants(patterns: Sequence[str], event_type: str) -> bool:
    """Whether a consumer with these patterns gets a message of this event type.

    The rules are the broker's (docs/api.md); tests compare the two.
    """
    return not patterns or any(
        pattern == EVERYTHING
        or (pattern.endswith(".*") and event_type.startswith(pattern[:-1]))
        or (pattern == event_type != "")
        for pattern in patterns
    )


def _of(samples: Sequence[Load], load: Load, basis: Basis) -> Estimate:
    messages = [sample.messages for sample in samples]
    return Estimate(load, min(messages), max(messages), len(samples), basis)
