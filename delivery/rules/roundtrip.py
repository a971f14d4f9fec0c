"""Roundtrip: where the time of a delivery went, from accepted to the acknowledgement on record."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

PARTS = (
    ("waited", "Until a worker took it"),
    ("reached", "Until it could be sent"),
    ("answered", "Until the answer"),
    ("acknowledged", "Until it was acknowledged"),
)


class Part(NamedTuple):
    """One stretch of it; all of them add up to the whole."""

    name: str
    words: str
    ms: float
    begins: float
    """0 to 1, of the whole."""
    share: float

    @property
    def percent(self) -> float:
        """Of the whole."""
        return self.share * 100


@dataclass(frozen=True, slots=True)
class Roundtrip:
    """Five instants, none before the one that it follows on (S3-16).

    It ends where the broker has the acknowledgement: the 2xx, or the word that came later.
    """

    accepted_at: datetime
    leased_at: datetime
    sent_at: datetime
    responded_at: datetime
    acknowledged_at: datetime

    @property
    def total_ms(self) -> float:
        """From the first to the last."""
        return _ms(self.acknowledged_at - self.accepted_at)

    @property
    def parts(self) -> list[Part]:
        """What lies between them."""
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
    """Out of what is kept of a delivery and of the attempt that was taken.

    An attempt goes by its host's clock and the rest by the database's: where they disagree, what
    lies between accepted and finished is moved into it.
    """
    end = max(accepted_at, finished_at)
    leased_at = min(max(accepted_at, started_at), end)
    sent_at = min(leased_at + timedelta(milliseconds=connect_ms or 0), end)
    responded_at = min(max(sent_at, leased_at + timedelta(milliseconds=total_ms)), end)
    return Roundtrip(accepted_at, leased_at, sent_at, responded_at, end)


def _ms(span: timedelta) -> float:
    return span.total_seconds() * 1000
