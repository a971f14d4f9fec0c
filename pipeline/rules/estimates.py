"""Estimate the load of a coming hour from the same hour of earlier weeks.

An hour of which nothing is known in the weeks before is looked for among the days before, and then
is as busy as the hours that are known are on average.
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
"""What is so many times as busy as usual is hot."""
EVERYTHING = "*"


class Basis(StrEnum):
    """What an estimate stands on. Stored and shown."""

    WEEKS = "weeks"
    """The same weekday and hour."""
    DAYS = "days"
    """The same hour of any day."""
    MEAN = "mean"
    """All hours that are known."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Load:
    """What passes in some time; an estimate may be half a message."""

    messages: float = 0.0
    deliveries: float = 0.0
    bytes: float = 0.0
    """Of bodies, once for each delivery."""

    def __add__(self, other: "Load") -> "Load":
        return Load(
            self.messages + other.messages,
            self.deliveries + other.deliveries,
            self.bytes + other.bytes,
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is to be expected, and how much the samples differ."""

    load: Load
    low: float = 0.0
    """Messages of the quietest sample."""
    high: float = 0.0
    """Messages of the busiest one."""
    samples: int = 0
    basis: Basis = Basis.NOTHING


IDLE = Load()
NONE = Estimate(IDLE)
Hours = Mapping[datetime, Load]


def estimate(
    hours: Hours, at: datetime, *, since: datetime, until: datetime, weeks: int
) -> Estimate:
    """The hour that begins ``at``, of one channel whose ``hours`` are known from ``since`` on up to
    ``until``; an hour that is missing in between had nothing."""
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
    """The median of each amount."""
    return Load(
        median(load.messages for load in loads),
        median(load.deliveries for load in loads),
        median(load.bytes for load in loads),
    )


def larger(one: Load, other: Load) -> Load:
    """The larger of each amount."""
    return Load(
        max(one.messages, other.messages),
        max(one.deliveries, other.deliveries),
        max(one.bytes, other.bytes),
    )


def threshold(usual: Sequence[float]) -> float:
    """Above which amounts of these are hot; quiet places are not hot by a handful."""
    return FACTOR * max(1.0, median(usual) if usual else 0.0)


def workers(per_second: float, rate: float) -> int:
    """Pumps that deliver so many a second, ``rate`` each; one has to live in any case."""
    return max(1, math.ceil(per_second / rate))


def errors(pairs: Iterable[tuple[float, float]]) -> tuple[float | None, float | None]:
    """How far forecasts were off, for pairs of what came and what was forecast.

    The sum of the errors as a share of what came, and the mean of each hour's own share, of hours
    in which something came. None where nothing did.
    """
    known = list(pairs)
    whole = sum(came for came, _ in known)
    if not whole:
        return None, None
    shares = [abs(came - said) / came for came, said in known if came]
    return sum(abs(came - said) for came, said in known) / whole, sum(shares) / len(shares)


def wants(patterns: Sequence[str], event_type: str) -> bool:
    """Whether a consumer with these patterns gets a message of this event type, as the broker says
    (docs/api.md); tests hold the two together."""
    return not patterns or any(
        pattern == EVERYTHING
        or (pattern.endswith(".*") and event_type.startswith(pattern[:-1]))
        or (pattern == event_type != "")
        for pattern in patterns
    )


def _of(samples: Sequence[Load], load: Load, basis: Basis) -> Estimate:
    messages = [sample.messages for sample in samples]
    return Estimate(load, min(messages), max(messages), len(samples), basis)
