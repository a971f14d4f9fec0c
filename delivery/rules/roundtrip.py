"""Break down the time of a delivery, from acceptance to the recorded acknowledgement."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

PARTS = (
    ("waited", "Until a worker claimed it"),
    ("reached", "Until connected"),
    ("answered", "Until the response"),
    ("acknowledged", "Until acknowledged"),
)


class Part(NamedTuple):
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
    def parts(self) -> list[Part]:
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
            Part(
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


def _ms(span: timedelta) -> float:
    return span.total_seconds() * 1000
