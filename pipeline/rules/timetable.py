"""Timetable: the hours to come of a channel and of all, out of what is usual and what is known."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pipeline.rules import estimates
from pipeline.rules.estimates import HOUR, IDLE, Basis, Hours, Load

ALL = 0
"""Stands for all channels together."""
MINUTE = timedelta(minutes=1)
HOUR_S, MINUTE_S = 3600, 60
_ROUGHER = list(Basis)


@dataclass(slots=True)
class Past:
    """What a channel had in each hour, by when it was due."""

    at_once: dict[datetime, Load] = field(default_factory=dict)
    """Messages that were due when they were accepted."""
    later: dict[datetime, Load] = field(default_factory=dict)
    """Scheduled ones."""

    @property
    def since(self) -> datetime | None:
        """Its first hour with a message; before that nothing is known of it."""
        return min((*self.at_once, *self.later), default=None)


@dataclass(slots=True)
class Known:
    """What waits for its instant already, by the minute."""

    scheduled: dict[datetime, Load] = field(default_factory=dict)
    retries: dict[datetime, Load] = field(default_factory=dict)
    """Deliveries of messages that were counted before."""

    def add(self, other: "Known") -> None:
        """Take in another channel's."""
        for mine, its in ((self.scheduled, other.scheduled), (self.retries, other.retries)):
            for at, load in its.items():
                mine[at] = mine.get(at, IDLE) + load

    def deliveries(self) -> dict[datetime, float]:
        """By the minute, of both kinds."""
        return {at: self.of(at).deliveries for at in {*self.scheduled, *self.retries}}

    def of(self, at: datetime) -> Load:
        """A minute."""
        return self.scheduled.get(at, IDLE) + self.retries.get(at, IDLE)


@dataclass(slots=True)
class Hour:
    """What is to be expected in an hour."""

    usual: Load = IDLE
    """Of messages that are sent at once."""
    planned: Load = IDLE
    """Scheduled: those that are known, or as many as usual where these are more."""
    retries: Load = IDLE
    scheduled: float = 0.0
    """Messages that are known."""
    low: float = 0.0
    high: float = 0.0
    """Messages, if the hour becomes like the quietest or the busiest of its samples."""
    samples: int = 0
    basis: Basis = Basis.NOTHING

    @property
    def load(self) -> Load:
        """All of it."""
        return self.usual + self.planned + Load(0, self.retries.deliveries, self.retries.bytes)

    def add(self, other: "Hour") -> None:
        """Take in another channel's; what it stands on is the roughest of what they stand on."""
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
    """Deliveries, in its busiest minute."""
    is_hot: bool


def hours(past: Past, known: Known, start: datetime, count: int, weeks: int) -> list[Hour]:
    """The ``count`` hours from ``start`` on; the past is known up to there."""
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
    """The hours as rows; of one channel only those in which something is to be expected."""
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
    """Minutes of all together in which far more waits than a usual minute has, hottest first."""
    hot = estimates.threshold([hour.load.deliveries / 60 for hour in found])
    minutes = [(number, at) for at, number in known.deliveries().items() if number > hot]
    return [at for _, at in sorted(minutes, key=lambda it: (-it[0], it[1]))[:most]]


def minute(channel_id: int, at: datetime, known: Known, usual: float) -> Frame | None:
    """A hot minute of a channel; None where nothing of it waits for then. ``usual`` are deliveries
    that come beside it."""
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
    """Messages that came in each of the ``count`` hours before ``start``, and what would have been
    forecast when they began."""
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
    """The beginning of its hour."""
    return at.replace(minute=0, second=0, microsecond=0)


def _by_hour(minutes: Mapping[datetime, Load]) -> Hours:
    found: dict[datetime, Load] = {}
    for at, load in minutes.items():
        found[hour_of(at)] = found.get(hour_of(at), IDLE) + load
    return found
