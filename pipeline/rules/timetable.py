"""Compute the coming hours of each channel and of all, from usual and scheduled load."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pipeline.rules import estimates
from pipeline.rules.estimates import HOUR, IDLE, Basis, Hours, Load

ALL = 0
"""Stands for all channels."""
MINUTE = timedelta(minutes=1)
HOUR_S, MINUTE_S = 3600, 60
_ROUGHER = list(Basis)


@dataclass(slots=True)
class Past:
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
class Known:
    """Scheduled messages and retries, by the minute."""

    scheduled: dict[datetime, Load] = field(default_factory=dict)
    retries: dict[datetime, Load] = field(default_factory=dict)
    """Deliveries of messages that were counted at their first due time."""

    def add(self, other: "Known") -> None:
        """Add another channel's load."""
        for mine, its in ((self.scheduled, other.scheduled), (self.retries, other.retries)):
            for at, load in its.items():
                mine[at] = mine.get(at, IDLE) + load

    def deliveries(self) -> dict[datetime, float]:
        """Deliveries by the minute, of messages and retries."""
        return {at: self.of(at).deliveries for at in {*self.scheduled, *self.retries}}

    def of(self, at: datetime) -> Load:
        """Return the load of a minute."""
        return self.scheduled.get(at, IDLE) + self.retries.get(at, IDLE)


@dataclass(slots=True)
class Hour:
    """The expected load of an hour."""

    usual: Load = IDLE
    """Messages that are sent at once."""
    planned: Load = IDLE
    """Scheduled messages: the known ones, or the usual number if that is larger."""
    retries: Load = IDLE
    scheduled: float = 0.0
    """Known scheduled messages."""
    low: float = 0.0
    high: float = 0.0
    """Messages, if the hour is like the highest of its samples; ``low`` for the lowest."""
    samples: int = 0
    basis: Basis = Basis.NOTHING

    @property
    def load(self) -> Load:
        """The total."""
        return self.usual + self.planned + Load(0, self.retries.deliveries, self.retries.bytes)

    def add(self, other: "Hour") -> None:
        """Add another channel's hour; the basis becomes the least precise of both."""
        if other.samples or other.load.messages:
            rougher = max(self.basis, other.basis, key=_ROUGHER.index)
            first = not (self.samples or self.load.messages)
            self.basis = other.basis if first else rougher
            self.samples = other.samples if first else min(self.samples, other.samples)
        self.usual += other.usual
        self.planned += other.planned
        self.retries += other.retries
        self.scheduled += other.scheduled
        self.low += other.low
        self.high += other.high


@dataclass(frozen=True, slots=True)
class Frame:
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


def hours(past: Past, known: Known, start: datetime, count: int, weeks: int) -> list[Hour]:
    """Estimate the ``count`` hours from ``start`` on; the past is known up to ``start``."""
    sure, again = _by_hour(known.scheduled), _by_hour(known.retries)
    since = past.since or start
    found = []
    for place in range(count):
        at = start + HOUR * place
        once, later = (
            estimates.estimate(kind, at, since=since, until=start, weeks=weeks)
            for kind in (past.at_once, past.later)
        )
        fixed = sure.get(at, IDLE)
        found.append(
            Hour(
                once.load,
                estimates.larger(fixed, later.load),
                again.get(at, IDLE),
                fixed.messages,
                once.low + max(fixed.messages, later.low),
                once.high + max(fixed.messages, later.high),
                once.samples,
                once.basis,
            )
        )
    return found


def frames(channel_id: int, start: datetime, found: list[Hour], known: Known) -> Iterator[Frame]:
    """Yield the hours as rows; of one channel only hours with load."""
    hot = estimates.threshold([hour.load.deliveries for hour in found])
    busiest: dict[datetime, float] = {}
    for minute, number in known.deliveries().items():
        at = hour_of(minute)
        busiest[at] = max(busiest.get(at, 0.0), number)
    for place, hour in enumerate(found):
        at, load = start + HOUR * place, hour.load
        if channel_id != ALL and not (load.deliveries or load.messages or hour.high):
            continue
        peak = (busiest.get(at, 0.0) + hour.usual.deliveries / 60) / MINUTE_S
        yield Frame(
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


def hot_minutes(found: list[Hour], known: Known, most: int) -> list[datetime]:
    """Return minutes with far more scheduled load than usual over all channels, hottest first."""
    hot = estimates.threshold([hour.load.deliveries / 60 for hour in found])
    minutes = [(number, at) for at, number in known.deliveries().items() if number > hot]
    return [at for _, at in sorted(minutes, key=lambda it: (-it[0], it[1]))[:most]]


def minute(channel_id: int, at: datetime, known: Known, usual: float) -> Frame | None:
    """Return a hot minute of a channel, or None if it has no scheduled load then.

    ``usual`` is the number of deliveries added to it.
    """
    load = known.of(at)
    if not load.deliveries:
        return None
    return Frame(
        channel_id,
        MINUTE_S,
        at,
        Load(known.scheduled.get(at, IDLE).messages, load.deliveries, load.bytes),
        known.scheduled.get(at, IDLE).messages,
        known.retries.get(at, IDLE).deliveries,
        *(known.scheduled.get(at, IDLE).messages,) * 2,
        0,
        Basis.NOTHING,
        (load.deliveries + usual) / MINUTE_S,
        True,
    )


def backtest(past: Past, start: datetime, count: int, weeks: int) -> Iterator[tuple[float, float]]:
    """Yield actual and forecast messages of each of the ``count`` hours before ``start``.

    The forecast is the one that would have been made when the hour began.
    """
    begins = start - HOUR * count
    since = min(past.since or begins, begins)
    for place in range(count):
        at = begins + HOUR * place
        said = came = 0.0
        for kind in (past.at_once, past.later):
            told = estimates.estimate(kind, at, since=since, until=begins, weeks=weeks)
            said += told.load.messages
            came += kind.get(at, IDLE).messages
        yield came, said


def hour_of(at: datetime) -> datetime:
    """Return the beginning of the hour."""
    return at.replace(minute=0, second=0, microsecond=0)


def _by_hour(minutes: Mapping[datetime, Load]) -> Hours:
    found: dict[datetime, Load] = {}
    for at, load in minutes.items():
        found[hour_of(at)] = found.get(hour_of(at), IDLE) + load
    return found
