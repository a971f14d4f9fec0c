"""Decide where acknowledgements, and their absence, take a delivery (S3-38).

A delivery that awaits its acknowledgement becomes due at its deadline like any other row, so a
claim finds it. An acknowledgement that arrives before its attempt is recorded is kept until then.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Protocol

from channels_app import randomness
from channels_app.core import backoff
from channels_app.database import raw
from channels_app.registry.cache import config_cache
from delivery import metrics
from delivery.core import acks
from delivery.core.lifecycle import Reason, Transition
from delivery.models import PendingAck
from delivery.transitions import Move, Row

EARLY = PendingAck._meta.db_table


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
