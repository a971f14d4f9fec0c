"""Compute health scores and error budgets.

A score is 100 times the lower bound of the success rate (E. B. Wilson, Probable inference, the law
of succession, and statistical inference, JASA 22, 1927: right for few attempts and for rates near
1). Recent attempts weigh more, and attempts that reached no server reduce the score by up to a
half.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from math import sqrt

from pipeline.contract.histogram import percentile

Z = 1.2816
"""The true rate is above the bound in nine of ten cases."""
HALF_LIFE_H = 6
FULL_WEIGHT = 1000
"""Weights are integers, so that sums do not depend on the order of adding."""
OUTAGE_FAILURES = 3
"""At least so many failures in a row are an outage."""
MIN_ATTEMPTS = 20
"""With fewer attempts than this the rate is uncertain."""
FAST_BURN_1H, FAST_BURN_6H = 14.4, 6.0
"""Burn rates over one hour and over six that justify an alert: 2 and 5 % of a budget of 30 days
(Google, The Site Reliability Workbook, 2018, chapter 5)."""
ARRIVED = frozenset({"delivered", "delivered_oversized"})
BROKERS_OWN = frozenset(
    {"interrupted", "lease_expired", "expired", "body_unreadable", "integrity_error"}
)
"""The broker sent no request, or broke it off: no information about the consumer."""
UNREACHABLE = frozenset(
    {
        "connect_timeout",
        "connection_refused",
        "connection_reset",
        "connection_error",
        "dns_error",
        "tls_error",
        "blocked_address",
    }
)
"""No server responded."""


@dataclass(slots=True)
class Measures:
    """Attempts of a period, without those that the broker itself broke off."""

    outcomes: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    """Attempts after a delivery's first."""
    weight: int = 0
    weight_arrived: int = 0
    weight_squares: int = 0
    latency: Counter[int] = field(default_factory=Counter)
    """Successful attempts by bucket."""

    @property
    def attempts(self) -> int:
        """Number of attempts."""
        return self.outcomes.total()

    @property
    def failed(self) -> int:
        """Number of failed attempts."""
        return sum(n for name, n in self.outcomes.items() if name not in ARRIVED)

    @property
    def unreachable(self) -> int:
        """Number of attempts that reached no server."""
        return sum(n for name, n in self.outcomes.items() if name in UNREACHABLE)

    @property
    def success(self) -> float | None:
        """Share of successful attempts."""
        return 1 - self.failed / self.attempts if self.attempts else None

    def add(
        self, outcome: str, bucket: int | None, count: int, retries: int, weight: int, squares: int
    ) -> None:
        """Add ``count`` attempts of one outcome, with the sums of (squared) weights."""
        self.outcomes[outcome] += count
        self.retries += retries
        self.weight += weight
        self.weight_squares += squares
        if outcome in ARRIVED:
            self.weight_arrived += weight
            if bucket is not None:
                self.latency[bucket] += count

    def percentile(self, percent: int) -> float | None:
        """Return a percentile of successful attempts in milliseconds."""
        return percentile(self.latency, percent)


def recency(hours: int) -> int:
    """Return the weight of an attempt so many hours before the end; it halves every six."""
    return round(float(FULL_WEIGHT * 0.5 ** (hours / HALF_LIFE_H)))


def wilson(rate: float, trials: float, z: float = Z) -> float:
    """Return the lower bound of a rate seen in so many trials (Wilson 1927)."""
    if trials <= 0:
        return 0.0
    square = z * z / trials
    spread = z * sqrt(max(0.0, rate * (1 - rate) / trials + square / (4 * trials)))
    return max(0.0, (rate + square / 2 - spread) / (1 + square))


def score(measures: Measures) -> int | None:
    """Return the score, 0 to 100; None without attempts."""
    if not measures.attempts or not measures.weight_squares:
        return None
    # The number of equally weighted trials with the same variance (Kish, Survey Sampling, 1965).
    trials = measures.weight**2 / measures.weight_squares
    bound = wilson(measures.weight_arrived / measures.weight, trials)
    return round(100 * bound * (1 - measures.unreachable / measures.attempts / 2))


def burn_rate(measures: Measures, objective: float) -> float | None:
    """Return the burn rate of the error budget, 1 when just met; ``objective`` in percent."""
    if not measures.attempts:
        return None
    return 100 * measures.failed / measures.attempts / (100 - objective)


def reason(
    day: Measures,
    before: Measures,
    *,
    down_since: datetime | None,
    burn_1h: float | None,
    burn_6h: float | None,
) -> str:
    """Explain the score to people."""
    text = _main_reason(day, before, down_since)
    if (burn_1h or 0) >= FAST_BURN_1H and (burn_6h or 0) >= FAST_BURN_6H:
        text += f"; in the last hour its error budget went {burn_1h:,.0f} times too fast"
    return text


def _main_reason(day: Measures, before: Measures, down_since: datetime | None) -> str:
    if not day.attempts:
        return "nothing was sent"
    if down_since is not None:
        return f"down since {down_since:%Y-%m-%d %H:%M} UTC, mostly {_most_frequent_failure(day)}"
    if day.failed:
        is_unreachable = day.unreachable * 2 >= day.failed
        what = "reached nobody" if is_unreachable else "failed"
        share = (day.unreachable if is_unreachable else day.failed) / day.attempts
        return f"{share:.2%} of attempts {what}, mostly {_most_frequent_failure(day)}"
    now, then = day.percentile(95), before.percentile(95)
    if now and then and now >= 2 * then and day.attempts >= MIN_ATTEMPTS:
        return f"slow: p95 is {now:,.0f} ms, in the 7 days before it was {then:,.0f} ms"
    if day.attempts < MIN_ATTEMPTS:
        return "well, as far as so few attempts tell"
    return "well"


def _most_frequent_failure(measures: Measures) -> str:
    """Return the most frequent failure; of equally frequent ones the first by name."""
    failures = [(-n, name) for name, n in measures.outcomes.items() if name not in ARRIVED]
    return min(failures)[1].replace("_", " ") if failures else "nothing"
