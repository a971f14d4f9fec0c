"""Measure round trips and latencies, and prepare them for charts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

PARTS = (
    ("waited", "Until a worker claimed it"),
    ("reached", "Until connected"),
    ("answered", "Until the response"),
    ("acknowledged", "Until acknowledged"),
)
BOUNDS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 30_000, 60_000),
    *(300_000, 1_800_000, 7_200_000, 43_200_000, 259_200_000),
)
"""Inclusive upper bounds of the buckets; one more bucket holds values above the last."""
BUCKETS = len(BOUNDS_MS) + 1
UNITS = (("d", 86_400_000, 2), ("h", 3_600_000, 2), ("min", 60_000, 2), ("s", 1000, 1))
"""Units for display: name, milliseconds, and the smallest multiple shown in the unit."""


class TimePart(NamedTuple):
    """One part of the time; the parts add up to the total."""

    name: str
    words: str
    ms: float
    begins: float
    """Start of the part, as a share of the total from 0 to 1."""
    share: float

    @property
    def percent(self) -> float:
        """The part in percent of the total."""
        return self.share * 100


@dataclass(frozen=True, slots=True)
class Roundtrip:
    """Five points in time, in ascending order (S3-16).

    The last one is when the broker has the acknowledgement: the 2xx, or a later one.
    """

    accepted_at: datetime
    leased_at: datetime
    sent_at: datetime
    responded_at: datetime
    acknowledged_at: datetime

    @property
    def total_ms(self) -> float:
        """Milliseconds from the first point to the last."""
        return _ms(self.acknowledged_at - self.accepted_at)

    @property
    def parts(self) -> list[TimePart]:
        """The parts between the points."""
        instants = (
            self.accepted_at,
            self.leased_at,
            self.sent_at,
            self.responded_at,
            self.acknowledged_at,
        )
        whole = self.total_ms or 1.0
        pairs = zip(PARTS, instants, instants[1:], strict=False)
        return [
            TimePart(
                name,
                words,
                _ms(until - since),
                _ms(since - self.accepted_at) / whole,
                _ms(until - since) / whole,
            )
            for (name, words), since, until in pairs
        ]


def of(
    accepted_at: datetime,
    started_at: datetime,
    connect_ms: int | None,
    total_ms: int,
    finished_at: datetime,
) -> Roundtrip:
    """Build the roundtrip from the stored delivery and its successful attempt.

    Attempts have times of their host's clock, the rest of the database's. If these disagree, times
    are moved to lie between acceptance and the end.
    """
    end = max(accepted_at, finished_at)
    leased_at = min(max(accepted_at, started_at), end)
    sent_at = min(leased_at + timedelta(milliseconds=connect_ms or 0), end)
    responded_at = min(max(sent_at, leased_at + timedelta(milliseconds=total_ms)), end)
    return Roundtrip(accepted_at, leased_at, sent_at, responded_at, end)


def quantile_ms(counts: Sequence[int], share: float) -> float | None:
    """Return the latency that a ``share`` (0 to 1) of all values do not exceed.

    Returns None without values. Assumes that values are spread evenly within a bucket. Values above
    the last bound count as it.
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    seen, lower = 0, 0
    for count, upper in zip(counts, BOUNDS_MS, strict=False):
        if seen + count >= wanted:
            return lower + (upper - lower) * (wanted - seen) / count
        seen, lower = seen + count, upper
    return float(BOUNDS_MS[-1])


def in_words(ms: float | None) -> str:
    """Return a duration as text in a suitable unit."""
    if ms is None:
        return "-"
    for unit, length, least in UNITS:
        if ms >= least * length:
            return f"{ms / length:.3g} {unit}"
    return f"{ms:.3g} ms"


@dataclass(frozen=True, slots=True)
class DeliveryFate:
    """The result so far of one delivery."""

    state: str
    attempt_count: int
    answer_ms: int | None = None
    """Response time of the successful attempt."""


@dataclass(frozen=True, slots=True)
class DeliveryBar:
    """The deliveries created in one span, or a sample of them."""

    begin: datetime
    end: datetime
    first: int = 0
    """Delivered at the first attempt."""
    later: int = 0
    """Delivered by a retry."""
    waiting: int = 0
    dead: int = 0
    attempts: int = 0
    answers: tuple[int, ...] = field(default=(), repr=False)
    """Response times in milliseconds, sorted."""
    is_sample: bool = False

    @property
    def total(self) -> int:
        """Number of deliveries counted."""
        return self.first + self.later + self.waiting + self.dead

    @property
    def delivered(self) -> int:
        """Number of delivered ones."""
        return self.first + self.later


def bar(
    begin: datetime, end: datetime, fates: Sequence[DeliveryFate], *, is_sample: bool
) -> DeliveryBar:
    """Count one span's deliveries."""
    arrived = [fate for fate in fates if fate.state == "delivered"]
    first = sum(fate.attempt_count <= 1 for fate in arrived)
    dead = sum(fate.state == "dead" for fate in fates)
    return DeliveryBar(
        begin=begin,
        end=end,
        first=first,
        later=len(arrived) - first,
        dead=dead,
        waiting=len(fates) - len(arrived) - dead,
        attempts=sum(fate.attempt_count for fate in fates),
        answers=tuple(sorted(fate.answer_ms for fate in arrived if fate.answer_ms is not None)),
        is_sample=is_sample,
    )


def together(bars: Sequence[DeliveryBar]) -> DeliveryBar:
    """Merge bars, at least one, into one."""
    return DeliveryBar(
        begin=bars[0].begin,
        end=bars[-1].end,
        first=sum(bar.first for bar in bars),
        later=sum(bar.later for bar in bars),
        waiting=sum(bar.waiting for bar in bars),
        dead=sum(bar.dead for bar in bars),
        attempts=sum(bar.attempts for bar in bars),
        answers=tuple(sorted(_all(bar.answers for bar in bars))),
        is_sample=any(bar.is_sample for bar in bars),
    )


def success_rate(bar: DeliveryBar) -> float | None:
    """Return the percentage of attempts that succeeded; None without attempts."""
    return 100 * bar.delivered / bar.attempts if bar.attempts else None


def percentile(values: Sequence[int], share: float) -> int | None:
    """Return the smallest sorted value that a ``share`` (0 to 1) of the values does not exceed."""
    if not values:
        return None
    place = max(0, -(-int(share * 10_000) * len(values) // 10_000) - 1)
    return values[min(place, len(values) - 1)]


def _ms(span: timedelta) -> float:
    return span.total_seconds() * 1000


def _all(parts: Iterable[Iterable[int]]) -> list[int]:
    return [value for part in parts for value in part]
