"""Forecast the coming hours of each channel and of all, from usual and from scheduled load.

The usual load of an hour is the median of the same hour of earlier weeks. If no earlier week is
known, it is that of earlier days, and else the mean of all known hours.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
WEEK = timedelta(days=7)
HOT_FACTOR = 5
"""A load so many times the usual one is hot."""
ANY_TYPE = "*"
ALL = 0
"""Stands for all channels."""
MINUTE = timedelta(minutes=1)
HOUR_S, MINUTE_S = 3600, 60


class Basis(StrEnum):
    """Basis of an estimate. Stored and shown."""

    WEEKS = "weeks"
    """The same weekday and hour."""
    DAYS = "days"
    """The same hour on any day."""
    MEAN = "mean"
    """The mean of all known hours."""
    NOTHING = "nothing"


_BY_PRECISION = list(Basis)


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


IDLE = Load()
Hours = Mapping[datetime, Load]


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


NO_ESTIMATE = Estimate(IDLE)


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
            return _of(samples, median_load(samples), basis)
    hour_count = round((until - since) / HOUR)
    if hour_count < 1:
        return NO_ESTIMATE
    samples = [hours.get(since + HOUR * number, IDLE) for number in range(hour_count)]
    whole = sum(samples, IDLE)
    return _of(
        samples,
        Load(whole.messages / hour_count, whole.deliveries / hour_count, whole.bytes / hour_count),
        Basis.MEAN,
    )


def median_load(loads: Sequence[Load]) -> Load:
    """Return the median of each amount."""
    return Load(
        median(load.messages for load in loads),
        median(load.deliveries for load in loads),
        median(load.bytes for load in loads),
    )


def larger_load(load: Load, other: Load) -> Load:
    """Return the larger of each amount."""
    return Load(
        max(load.messages, other.messages),
        max(load.deliveries, other.deliveries),
        max(load.bytes, other.bytes),
    )


def hot_threshold(usual: Sequence[float]) -> float:
    """Return the amount above which one of these is hot, with a minimum for quiet channels."""
    return HOT_FACTOR * max(1.0, median(usual) if usual else 0.0)


def pumps_needed(per_second: float, rate: float) -> int:
    """Return how many pumps deliver so many a second at ``rate`` each; at least one."""
    return max(1, math.ceil(per_second / rate))


def forecast_errors(pairs: Iterable[tuple[float, float]]) -> tuple[float | None, float | None]:
    """Return the errors of forecasts, for pairs of actual and forecast values.

    The first is the sum of the errors divided by the sum of actual values. The second is the mean
    relative error of the hours with an actual value. Both are None if there are none.
    """
    compared = list(pairs)
    whole = sum(actual for actual, _ in compared)
    if not whole:
        return None, None
    shares = [abs(actual - forecast) / actual for actual, forecast in compared if actual]
    total_error = sum(abs(actual - forecast) for actual, forecast in compared)
    return total_error / whole, sum(shares) / len(shares)


def matches(patterns: Sequence[str], event_type: str) -> bool:
    """Whether a consumer with these patterns gets a message of this event type.

    The rules are the broker's (docs/api.md); tests compare the two.
    """
    return not patterns or any(
        pattern == ANY_TYPE
        or (pattern.endswith(".*") and event_type.startswith(pattern[:-1]))
        or (pattern == event_type != "")
        for pattern in patterns
    )


@dataclass(slots=True)
class PastLoad:
    """A channel's load in each hour, by the time when messages were due."""

    at_once: dict[datetime, Load] = field(default_factory=dict)
    """Messages due at the time of acceptance."""
    later: dict[datetime, Load] = field(default_factory=dict)
    """Scheduled messages."""

    @property
    def since(self) -> datetime | None:
        """The first hour with a message; before it the channel is unknown."""
        return min((*self.at_once, *self.later), default=None)


@dataclass(slots=True)
class ScheduledLoad:
    """Scheduled messages and retries, by the minute."""

    scheduled: dict[datetime, Load] = field(default_factory=dict)
    retries: dict[datetime, Load] = field(default_factory=dict)
    """Deliveries of messages that were counted at their first due time."""

    def add(self, other: "ScheduledLoad") -> None:
        """Add another channel's load."""
        for own, its in ((self.scheduled, other.scheduled), (self.retries, other.retries)):
            for at, load in its.items():
                own[at] = own.get(at, IDLE) + load

    def deliveries(self) -> dict[datetime, float]:
        """Deliveries by the minute, of messages and retries."""
        return {at: self.of(at).deliveries for at in {*self.scheduled, *self.retries}}

    def of(self, at: datetime) -> Load:
        """Return the load of a minute."""
        return self.scheduled.get(at, IDLE) + self.retries.get(at, IDLE)


@dataclass(slots=True)
class HourForecast:
    """The expected load of an hour."""

    usual: Load = IDLE
    """Messages that are sent at once."""
    planned: Load = IDLE
    """Scheduled messages: the known ones, or the usual number if that is larger."""
    retries: Load = IDLE
    scheduled: float = 0.0
    """Messages that are already scheduled."""
    low: float = 0.0
    high: float = 0.0
    """Messages, if the hour is like the highest of its samples; ``low`` for the lowest."""
    samples: int = 0
    basis: Basis = Basis.NOTHING

    @property
    def load(self) -> Load:
        """The total."""
        return self.usual + self.planned + Load(0, self.retries.deliveries, self.retries.bytes)

    def add(self, other: "HourForecast") -> None:
        """Add another channel's hour; the basis becomes the least precise of both."""
        if other.samples or other.load.messages:
            least_precise = max(self.basis, other.basis, key=_BY_PRECISION.index)
            first = not (self.samples or self.load.messages)
            self.basis = other.basis if first else least_precise
            self.samples = other.samples if first else min(self.samples, other.samples)
        self.usual += other.usual
        self.planned += other.planned
        self.retries += other.retries
        self.scheduled += other.scheduled
        self.low += other.low
        self.high += other.high


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """A row of the forecast."""

    channel_id: int
    span_s: int
    begins_at: datetime
    load: Load
    scheduled: float
    retries: float
    low: float
    high: float
    samples: int
    basis: Basis
    per_second: float
    """Deliveries per second in the busiest minute."""
    is_hot: bool


def forecast_hours(
    past: PastLoad, planned: ScheduledLoad, start: datetime, count: int, weeks: int
) -> list[HourForecast]:
    """Estimate the ``count`` hours from ``start`` on; the past is known up to ``start``."""
    scheduled, retries = _by_hour(planned.scheduled), _by_hour(planned.retries)
    since = past.since or start
    forecasts = []
    for place in range(count):
        at = start + HOUR * place
        once, later = (
            estimate(kind, at, since=since, until=start, weeks=weeks)
            for kind in (past.at_once, past.later)
        )
        fixed = scheduled.get(at, IDLE)
        forecasts.append(
            HourForecast(
                once.load,
                larger_load(fixed, later.load),
                retries.get(at, IDLE),
                fixed.messages,
                once.low + max(fixed.messages, later.low),
                once.high + max(fixed.messages, later.high),
                once.samples,
                once.basis,
            )
        )
    return forecasts


def hour_rows(
    channel_id: int, start: datetime, hours: list[HourForecast], planned: ScheduledLoad
) -> Iterator[ForecastRow]:
    """Yield the hours as rows; of one channel only hours with load."""
    hot = hot_threshold([hour.load.deliveries for hour in hours])
    busiest: dict[datetime, float] = {}
    for minute, number in planned.deliveries().items():
        at = hour_of(minute)
        busiest[at] = max(busiest.get(at, 0.0), number)
    for place, hour in enumerate(hours):
        at, load = start + HOUR * place, hour.load
        if channel_id != ALL and not (load.deliveries or load.messages or hour.high):
            continue
        peak = (busiest.get(at, 0.0) + hour.usual.deliveries / 60) / MINUTE_S
        yield ForecastRow(
            channel_id,
            HOUR_S,
            at,
            load,
            hour.scheduled,
            hour.retries.deliveries,
            hour.low,
            hour.high,
            hour.samples,
            hour.basis,
            max(load.deliveries / HOUR_S, peak),
            load.deliveries > hot,
        )


def hot_minutes(hours: list[HourForecast], planned: ScheduledLoad, most: int) -> list[datetime]:
    """Return minutes with far more scheduled load than usual over all channels, hottest first."""
    hot = hot_threshold([hour.load.deliveries / 60 for hour in hours])
    minutes = [(number, at) for at, number in planned.deliveries().items() if number > hot]
    return [at for _, at in sorted(minutes, key=lambda minute: (-minute[0], minute[1]))[:most]]


def minute_row(
    channel_id: int, at: datetime, planned: ScheduledLoad, usual: float
) -> ForecastRow | None:
    """Return a hot minute of a channel, or None if it has no scheduled load then.

    ``usual`` is the number of deliveries added to it.
    """
    load = planned.of(at)
    if not load.deliveries:
        return None
    return ForecastRow(
        channel_id,
        MINUTE_S,
        at,
        Load(planned.scheduled.get(at, IDLE).messages, load.deliveries, load.bytes),
        planned.scheduled.get(at, IDLE).messages,
        planned.retries.get(at, IDLE).deliveries,
        *(planned.scheduled.get(at, IDLE).messages,) * 2,
        0,
        Basis.NOTHING,
        (load.deliveries + usual) / MINUTE_S,
        True,
    )


def backtest(
    past: PastLoad, start: datetime, count: int, weeks: int
) -> Iterator[tuple[float, float]]:
    """Yield actual and forecast messages of each of the ``count`` hours before ``start``.

    The forecast is the one that would have been made when the hour began.
    """
    begins = start - HOUR * count
    since = min(past.since or begins, begins)
    for place in range(count):
        at = begins + HOUR * place
        forecast = actual = 0.0
        for kind in (past.at_once, past.later):
            expected = estimate(kind, at, since=since, until=begins, weeks=weeks)
            forecast += expected.load.messages
            actual += kind.get(at, IDLE).messages
        yield actual, forecast


def hour_of(at: datetime) -> datetime:
    """Return the beginning of the hour."""
    return at.replace(minute=0, second=0, microsecond=0)


def _of(samples: Sequence[Load], load: Load, basis: Basis) -> Estimate:
    messages = [sample.messages for sample in samples]
    return Estimate(load, min(messages), max(messages), len(samples), basis)


def _by_hour(minutes: Mapping[datetime, Load]) -> Hours:
    hours: dict[datetime, Load] = {}
    for at, load in minutes.items():
        hours[hour_of(at)] = hours.get(hour_of(at), IDLE) + load
    return hours
