"""Read how many deliveries wait, for metrics, readiness and the console's start page."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, Sum

from channels_app.database import clock
from channels_app.registry.cache import ConsumerConfig, config_cache
from delivery.core.lifecycle import DeliveryState
from delivery.models import ConsumerHealth, Counter
from delivery.models.counter import COUNTED, MADE, OPEN
from delivery.queue import due_times

STATES = tuple(state.value for state in DeliveryState)
LATE_S = 60.0
"""If only the broker delays a due delivery for longer than this, readiness fails."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Deliveries by consumer and state at one instant, from the counters: exact, without a scan."""

    by_consumer: dict[int, dict[str, int]]

    @property
    def by_state(self) -> dict[str, int]:
        """Deliveries per state, summed over all consumers; includes zeros."""
        return {state: self._total(state) for state in STATES}

    @property
    def gap(self) -> int:
        """Deliveries created minus those in any state; the counters are wrong unless this is 0."""
        return self._total(MADE) - sum(self.by_state.values())

    def has_open(self, consumer_id: int) -> bool:
        """Whether the consumer has unfinished deliveries."""
        counts = self.by_consumer.get(consumer_id, {})
        return any(counts.get(state, 0) > 0 for state in OPEN)

    def in_flight(self, consumer_id: int) -> int:
        """Deliveries that are claimed by a worker."""
        return self.by_consumer.get(consumer_id, {}).get(DeliveryState.IN_FLIGHT, 0)

    def _total(self, state: str) -> int:
        return sum(counts[state] for counts in self.by_consumer.values())


def read() -> Backlog:
    """Read the counters in one query, so that all belong to the same instant."""
    by_consumer: dict[int, dict[str, int]] = {}
    rows = Counter.objects.values_list("consumer_id", "state").annotate(total=Sum("count"))
    for consumer_id, state, total in rows:
        counts = by_consumer.setdefault(consumer_id, dict.fromkeys(COUNTED, 0))
        counts[state] = int(total)
    return Backlog(by_consumer)


def oldest_due_s(backlog: Backlog) -> float:
    """Age in seconds of the oldest due delivery that only the broker delays.

    0 if there is none. Paused, failing, slowed, rate-limited and fully occupied consumers delay
    their own deliveries, and pull consumers fetch when they like, so these do not count. Reads one
    short index range per consumer and priority level.
    """
    now = clock.now()
    busy = [
        consumer
        for consumer in config_cache.consumers().values()
        if _may_be_called(consumer) and backlog.has_open(consumer.id)
    ]
    held_back = _held_back((consumer.id for consumer in busy), now)
    ready = [
        consumer.id
        for consumer in busy
        if consumer.id not in held_back and backlog.in_flight(consumer.id) < consumer.max_in_flight
    ]
    oldest = min(due_times.next_due(ready).values(), default=now)
    return max(0.0, (now - oldest).total_seconds())


def _may_be_called(consumer: ConsumerConfig) -> bool:
    return consumer.mode == "push" and not consumer.halted and consumer.rate is None


def _held_back(consumer_ids: Iterable[int], now: datetime) -> set[int]:
    """Consumers with an open circuit, or that requested a slower pace."""
    return set(
        ConsumerHealth.objects.filter(consumer_id__in=list(consumer_ids))
        .exclude(
            Q(circuit=ConsumerHealth.Circuit.CLOSED), Q(slow_until=None) | Q(slow_until__lte=now)
        )
        .values_list("consumer_id", flat=True)
    )
