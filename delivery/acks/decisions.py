"""Decide where acknowledgements, and their absence, take a delivery (S3-38).

A delivery that awaits its acknowledgement becomes due at its deadline like any other row, so a
claim finds it. An acknowledgement that arrives before its attempt is recorded is kept until then.
"""

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from channels_app import randomness
from channels_app.core import backoff
from channels_app.database import raw
from channels_app.database.raw import by_index
from channels_app.registry.cache import ConsumerConfig, config_cache
from delivery import metrics
from delivery.core import acks
from delivery.core.acks import Bounds
from delivery.core.lifecycle import DeliveryState, Reason, Transition
from delivery.models import Attempt, Delivery, PendingAck
from delivery.transitions import Move, Row

EARLY = PendingAck._meta.db_table
RECENT = 200
"""Deliveries to examine; takes a few milliseconds, however long the consumer's history is."""
FRESH_S = 5.0
"""Seconds for which a value from the tables is used."""
_ENDS = (DeliveryState.DELIVERED, DeliveryState.DEAD)


class AwaitingDelivery(Row, Protocol):
    """A locked delivery that awaits its acknowledgement."""

    @property
    def failure_count(self) -> int: ...
    @property
    def event_type(self) -> str: ...


def timed_out(rows: Iterable[AwaitingDelivery]) -> list[Move]:
    """Return transitions of deliveries that were not acknowledged in time."""
    rows = list(rows)
    metrics.ACKS.labels("timeout").inc(len(rows))
    return [Move(row, _silently(row)) for row in rows]


def decided(lapsed: Sequence[AwaitingDelivery]) -> list[Move]:
    """Return transitions of expired leases whose deliveries were acknowledged or refused before.

    Nothing else is known about how those attempts ended; it saves another one.
    """
    if not lapsed:
        return []
    acks_by_id = _stored(row.id for row in lapsed)
    acknowledged = [row for row in lapsed if row.id in acks_by_id]
    return [
        Move(
            row,
            acks.confirmed()
            if acks_by_id[row.id]
            else refused(row.consumer_id, row.failure_count, row.event_type),
        )
        for row in acknowledged
    ]


def early(delivery_ids: Iterable[int]) -> dict[int, bool]:
    """Take the stored early acknowledgements of these deliveries; True for ok."""
    return _stored(delivery_ids) if config_cache.awaiting() else {}


def refused(consumer_id: int, failure_count: int, event_type: str) -> Transition:
    """Return the transition after the consumer reported a failure."""
    consumer = config_cache.consumers({consumer_id}).get(consumer_id)
    rule = consumer.retry_for(event_type) if consumer else backoff.NEVER
    return acks.refused(
        failure_count=failure_count,
        max_attempts=rule.max_attempts,
        policy=rule.policy,
        jitter=randomness.jitter(),
        reason=Reason.RETRY,
    )


def wait_of(consumer_id: int) -> timedelta:
    """Return the time to wait for the consumer's acknowledgements; 0 if it does not send any."""
    consumer = config_cache.consumers({consumer_id}).get(consumer_id)
    mode = acks.mode_of(consumer.ack) if consumer else None
    return timedelta(seconds=mode.wait_s if mode else 0.0)


class Waits:
    """Timeouts of consumers whose ``timeout_ms`` is adaptive; others need no query."""

    def __init__(self) -> None:
        self._timeouts: dict[int, tuple[float, float]] = {}
        """Milliseconds by consumer, and until when (`time.monotonic`) they are fresh."""
        self._wanted: dict[int, acks.Bounds] = {}

    def of(self, consumer: ConsumerConfig) -> float | None:
        """Return the timeout in milliseconds; None if it is fixed or not known yet."""
        bounds = acks.bounds_of(consumer.ack)
        if bounds is None:
            return None
        known_ms, fresh_until = self._timeouts.get(consumer.id, (bounds.high_ms, 0.0))
        if time.monotonic() >= fresh_until:
            self._wanted[consumer.id] = bounds
        return min(bounds.high_ms, max(bounds.low_ms, known_ms))

    def learn(self) -> None:
        """Read the timeouts that were requested and are not fresh."""
        while self._wanted:
            consumer_id, bounds = self._wanted.popitem()
            wait_ms = measured_wait_ms(consumer_id, bounds)
            self._timeouts[consumer_id] = (wait_ms, time.monotonic() + FRESH_S)


def measured_wait_ms(consumer_id: int, bounds: Bounds) -> float:
    """Return the timeout in milliseconds for this consumer's next acknowledgement.

    Only first attempts count: after a retry it is unknown which attempt was acknowledged.
    """
    rows: list[Any] = []
    for state in _ENDS:
        of_state = Delivery.objects.filter(consumer_id=consumer_id, state=state.value)
        recent = by_index(of_state, "delivery_list").order_by("-id")
        rows += recent.values_list("id", "reason", "attempt_count", "finished_at")[:RECENT]
    rows = sorted(rows, reverse=True)[:RECENT]
    acknowledged = {
        key: finished_at
        for key, reason, attempts, finished_at in rows
        if reason == Reason.ACKNOWLEDGED and attempts == 1
    }
    silent = sum(
        reason in {Reason.ACK_TIMEOUT, Reason.EXHAUSTED}
        or (reason == Reason.ACKNOWLEDGED and attempts > 1)
        for _, reason, attempts, _ in rows
    )
    firsts = Attempt.objects.filter(delivery_id__in=list(acknowledged), number=1)
    took_ms = [
        (acknowledged[key] - started_at).total_seconds() * 1000 - total_ms
        for key, started_at, total_ms in firsts.values_list("delivery_id", "started_at", "total_ms")
    ]
    return acks.wait_ms(took_ms, silent, low=bounds.low_ms, high=bounds.high_ms)


def _stored(delivery_ids: Iterable[int]) -> dict[int, bool]:
    ids = raw.listed(delivery_ids)
    rows = raw.read(f"SELECT delivery_id, ok FROM {EARLY} WHERE delivery_id IN ({ids})")
    if rows:
        gone = raw.listed(key for key, _ in rows)
        raw.execute(f"DELETE FROM {EARLY} WHERE delivery_id IN ({gone})")
    return {key: bool(ok) for key, ok in rows}


def _silently(row: AwaitingDelivery) -> Transition:
    consumer = config_cache.consumers().get(row.consumer_id)
    rule = consumer.retry_for(row.event_type) if consumer else backoff.NEVER
    return acks.timed_out(
        acks.mode_of(consumer.ack) if consumer else None,
        failure_count=row.failure_count,
        max_attempts=rule.max_attempts,
        policy=rule.policy,
        jitter=randomness.jitter(),
    )
