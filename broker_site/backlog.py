"""Backlog: what waits, read once for metrics, readiness and the console's first page."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, Sum

from channels_app import clock
from channels_app.config_cache import ConsumerConfig, config_cache
from delivery.models import ConsumerHealth, Counter
from delivery.models.counter import COUNTED, MADE
from delivery.rules.lifecycle import DeliveryState
from delivery.steps import due_times

STATES = tuple(state.value for state in DeliveryState)
LATE_S = 60.0
"""A delivery that is due for longer, though nothing but the broker holds it up, is a failure."""
OPEN = (DeliveryState.QUEUED, DeliveryState.IN_FLIGHT, DeliveryState.AWAITING_ACK)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Deliveries by consumer and state at one instant, from the counters: exact, never a scan."""

    by_consumer: dict[int, dict[str, int]]

    @property
    def by_state(self) -> dict[str, int]:
        """Deliveries of each state over all consumers, zero included."""
        return {state: self._total(state) for state in STATES}

    @property
    def gap(self) -> int:
        """Deliveries made minus those found in any state: other than 0 the books are wrong."""
        return self._total(MADE) - sum(self.by_state.values())

    def has_open(self, consumer_id: int) -> bool:
        """Whether anything of this consumer is unfinished."""
        counts = self.by_consumer.get(consumer_id, {})
        return any(counts.get(state, 0) > 0 for state in OPEN)

    def in_flight(self, consumer_id: int) -> int:
        """Deliveries that some worker holds."""
        return self.by_consumer.get(consumer_id, {}).get(DeliveryState.IN_FLIGHT, 0)

    def _total(self, state: str) -> int:
        return sum(counts[state] for counts in self.by_consumer.values())


def read() -> Backlog:
    """The counters, in one query: one instant, so that the gap means something."""
    by_consumer: dict[int, dict[str, int]] = {}
    rows = Counter.objects.values_list("consumer_id", "state").annotate(total=Sum("count"))
    for consumer_id, state, total in rows:
        counts = by_consumer.setdefault(consumer_id, dict.fromkeys(COUNTED, 0))
        counts[state] = int(total)
    return Backlog(by_consumer)


def oldest_due_s(backlog: Backlog) -> float:
    """Age in seconds of the oldest due delivery that nothing but the broker keeps waiting.

    0 when there is none. Paused, failing, slowed, rate-limited and fully occupied consumers keep
    their deliveries waiting themselves, and pull consumers fetch when they like: none of them may
    make the broker look late. One short index range per consumer and priority level.
    """
    now = clock.now()
    busy = [
        view
        for view in config_cache.consumers().values()
        if _may_be_called(view) and backlog.has_open(view.id)
    ]
    held_back = _held_back((view.id for view in busy), now)
    ready = [
        view.id
        for view in busy
        if view.id not in held_back and backlog.in_flight(view.id) < view.max_in_flight
    ]
    oldest = min(due_times.next_due(ready).values(), default=now)
    return max(0.0, (now - oldest).total_seconds())


def _may_be_called(view: ConsumerConfig) -> bool:
    return view.mode == "push" and not view.halted and view.rate is None


def _held_back(consumer_ids: Iterable[int], now: datetime) -> set[int]:
    """Those whose circuit is open, or who asked for a slower pace."""
    return set(
        ConsumerHealth.objects.filter(consumer_id__in=list(consumer_ids))
        .exclude(
            Q(circuit=ConsumerHealth.Circuit.CLOSED), Q(slow_until=None) | Q(slow_until__lte=now)
        )
        .values_list("consumer_id", flat=True)
    )
