"""Metrics of delivery. Labels never have unbounded values; depths are read at scrape time."""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import prometheus_client
from prometheus_client import Counter, Gauge

from delivery.core.lifecycle import DeliveryState
from delivery.core.outcome import Outcome

_LATENCY = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 43200, 259200),
)
ATTEMPTS = Counter("hookstation_attempts_total", "Attempts by outcome.", ["outcome"])
DELIVERIES = Counter(
    "hookstation_deliveries_total", "Deliveries that reached a state, by state.", ["state"]
)
ACKS = Counter(
    "hookstation_acks_total",
    "Later acknowledgements: on_time, early, late, double, foreign; timeout: none came.",
    ["result"],
)
OCCURRENCES = Counter(
    "hookstation_schedule_occurrences_total", "Occurrences of schedules by result.", ["result"]
)
SWEEP_ROWS = Counter(
    "hookstation_sweep_rows_total",
    "Rows that a sweep repaired or removed.",
    ["kind"],
)
LATE_RESULTS = Counter(
    "hookstation_late_results_total", "Results that came after another worker claimed the delivery."
)
LOCAL_FAILURES = Counter(
    "hookstation_local_failures_total",
    "Attempts that this side could not make: no resolver, network or file descriptor.",
)
UNOPENED = Counter(
    "hookstation_deliveries_unopened_total",
    "Deliveries released, unsent and uncharged, by a process without their encryption key.",
)
RECEIVED = Counter("hookstation_received_total", "Deliveries received by pull consumers.")
WAITING = Gauge(
    "hookstation_receivers_waiting",
    "Receive calls that wait for messages now.",
    multiprocess_mode="livesum",
)
RESUMED = Counter(
    "hookstation_receivers_resumed_total",
    "Waiting receive calls that got messages, by cause: wakeup, timer, scan (found by polling), "
    "next (left by another call).",
    ["cause"],
)
POLLS_REFUSED = Counter(
    "hookstation_polls_refused_total", "Receive calls that could not wait, because too many waited."
)
TASKS_REFUSED = Counter(
    "hookstation_tasks_refused_total", "Background tasks that are not the project's, never run."
)
PUMP_ERRORS = Counter(
    "hookstation_pump_errors_total", "Rounds of a pump that failed and were retried."
)


class Histogram(prometheus_client.Histogram):
    """A histogram of times. A negative one counts as 0: the clocks of two processes differ."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Record a time in seconds."""
        super().observe(max(0.0, amount), exemplar)

    def observe_all(self, amounts: Sequence[float]) -> None:
        """`observe` each amount, with one write per bucket that changes.

        The values are shared with other processes through a file; a write to it takes longer than
        finding the bucket.
        """
        if not amounts:
            return
        self._sum.inc(sum(max(0.0, amount) for amount in amounts))
        # A bucket includes its upper bound.
        places = Tally(bisect_left(self._upper_bounds, amount) for amount in amounts)
        for place, count in places.items():
            self._buckets[place].inc(count)


LATENCY = Histogram(
    "hookstation_delivery_latency_seconds", "Time from acceptance to delivery.", buckets=_LATENCY
)
ATTEMPT_DURATION = Histogram(
    "hookstation_attempt_duration_seconds", "Duration of one attempt.", buckets=_LATENCY
)
LATENESS = Histogram(
    "hookstation_timeline_lateness_seconds",
    "Time from when a delivery was due to its sending.",
    buckets=_LATENCY,
)
ORDERING_WAIT = Histogram(
    "hookstation_ordering_wait_seconds",
    "How long a delivery that was due waited for an earlier one of its ordering key.",
    buckets=_LATENCY,
)
OCCURRENCE_LATENESS = Histogram(
    "hookstation_schedule_lateness_seconds",
    "Time from an occurrence of a schedule until its message was stored.",
    buckets=_LATENCY,
)


class Ended(NamedTuple):
    """A delivery that was delivered or died."""

    state: DeliveryState
    latency_s: float
    """Time from acceptance until now."""


def count_attempts(attempts: Iterable[tuple[Outcome, float]]) -> None:
    """Count recorded attempts; each has its outcome and its duration in seconds."""
    attempts = list(attempts)
    for outcome, number in Tally(outcome for outcome, _ in attempts).items():
        ATTEMPTS.labels(outcome.value).inc(number)
    ATTEMPT_DURATION.observe_all([seconds for _, seconds in attempts])


def count_deliveries(ended: Iterable[Ended]) -> None:
    """Count deliveries that were delivered or died."""
    ended = list(ended)
    for state, number in Tally(delivery.state for delivery in ended).items():
        DELIVERIES.labels(state.value).inc(number)
    LATENCY.observe_all(
        [delivery.latency_s for delivery in ended if delivery.state is DeliveryState.DELIVERED]
    )
