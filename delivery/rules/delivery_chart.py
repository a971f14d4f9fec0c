"""Chart a consumer's deliveries: counts and percentiles for equal spans of time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class DeliveryFate:
    """The result so far of one delivery."""

    state: str
    attempt_count: int
    answer_ms: int | None = None
    """Response time of the successful attempt."""


@dataclass(frozen=True, slots=True)
class Bar:
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


def bar(begin: datetime, end: datetime, fates: Sequence[DeliveryFate], *, is_sample: bool) -> Bar:
    """Count one span's deliveries."""
    arrived = [fate for fate in fates if fate.state == "delivered"]
    first = sum(fate.attempt_count <= 1 for fate in arrived)
    dead = sum(fate.state == "dead" for fate in fates)
    return Bar(
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


def together(bars: Sequence[Bar]) -> Bar:
    """Merge bars, at least one, into one."""
    return Bar(
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


def success_rate(bar: Bar) -> float | None:
    """Return the percentage of attempts that succeeded; None without attempts."""
    return 100 * bar.delivered / bar.attempts if bar.attempts else None


def percentile(values: Sequence[int], share: float) -> int | None:
    """Return the smallest sorted value that a ``share`` (0 to 1) of the values does not exceed."""
    if not values:
        return None
    place = max(0, -(-int(share * 10_000) * len(values) // 10_000) - 1)
    return values[min(place, len(values) - 1)]


def _all(parts: Iterable[Iterable[int]]) -> list[int]:
    return [value for part in parts for value in part]
