"""Apply acknowledgements that arrive separately, for settling and claiming (S3-05, S3-38).

A delivery that awaits its acknowledgement becomes due at its deadline like any other row, so a
claim finds it. An acknowledgement that arrives before its attempt is recorded is kept until then.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from django.db import connection

from channels_app import randomness
from channels_app.config_cache import config_cache
from channels_app.models import raw
from channels_app.rules import backoff
from delivery import metrics
from delivery.models import Correlation, Delivery, EarlyAck
from delivery.rules import acks
from delivery.rules.correlation import correlation_id
from delivery.rules.lifecycle import DeliveryState, Reason, Transition

DELIVERIES, EARLY = Delivery._meta.db_table, EarlyAck._meta.db_table
CORRELATIONS = Correlation._meta.db_table
CLOCKS_DIFFER = timedelta(seconds=1)
"""Greater than the difference between two processes' estimates of the database's time."""


class Waiting(Protocol):
    """A locked delivery that awaits its acknowledgement."""

    @property
    def id(self) -> int: ...
    @property
    def consumer_id(self) -> int: ...
    @property
    def failure_count(self) -> int: ...
    @property
    def event_type(self) -> str: ...


class Move(NamedTuple):
    """A delivery and the transition to apply to it."""

    delivery_id: int
    transition: Transition


class Named(NamedTuple):
    """A delivery with the id that the consumer's provider gave it."""

    consumer_id: int
    delivery_id: int
    provider_id: str
    accepted_at: datetime


def timed_out(rows: Iterable[Waiting]) -> list[Move]:
    """Return transitions of deliveries that were not acknowledged in time."""
    rows = list(rows)
    metrics.ACKS.labels("timeout").inc(len(rows))
    return [Move(row.id, _silently(row)) for row in rows]


def decided(lapsed: Sequence[Waiting]) -> list[Move]:
    """Return transitions of expired leases whose deliveries were acknowledged or refused before.

    Nothing else is known about how those attempts ended; it saves another one.
    """
    if not lapsed:
        return []
    acks_by_id = _kept(row.id for row in lapsed)
    acknowledged = [row for row in lapsed if row.id in acks_by_id]
    ends = [
        acks.confirmed()
        if acks_by_id[row.id]
        else refused(row.consumer_id, row.failure_count, row.event_type)
        for row in acknowledged
    ]
    return [Move(row.id, end) for row, end in zip(acknowledged, ends, strict=True)]


def early(delivery_ids: Iterable[int]) -> dict[int, bool]:
    """Take the stored early acknowledgements of these deliveries; True for ok."""
    return _kept(delivery_ids) if config_cache.awaiting() else {}


def _kept(delivery_ids: Iterable[int]) -> dict[int, bool]:
    ids = raw.listed(delivery_ids)
    found = raw.read(f"SELECT delivery_id, ok FROM {EARLY} WHERE delivery_id IN ({ids})")
    if found:
        gone = raw.listed(key for key, _ in found)
        raw.execute(f"DELETE FROM {EARLY} WHERE delivery_id IN ({gone})")
    return {key: bool(ok) for key, ok in found}


def correlated(named: Iterable[Named], now: datetime) -> dict[int, bool]:
    """Store the provider ids of deliveries, and take the callbacks that came before; True for ok.

    A callback from before the message was accepted is ignored: it concerns another message with the
    same id, or is a guess.
    """
    since = {correlation_id(it.consumer_id, it.provider_id): it for it in named}
    if not since:
        return {}
    rows = sorted((key, it.delivery_id) for key, it in since.items())
    # A callback stored here keeps its own time.
    kept = f"CASE WHEN {CORRELATIONS}.ok IS NULL THEN {{}} ELSE {CORRELATIONS}.noted_at END"
    update = (
        f"ON DUPLICATE KEY UPDATE noted_at = {kept.format('VALUES(noted_at)')}, "
        "delivery_id = VALUES(delivery_id)"
        if connection.vendor == "mysql"
        else f"ON CONFLICT (id) DO UPDATE SET noted_at = {kept.format('excluded.noted_at')}, "
        "delivery_id = excluded.delivery_id"
    )
    # In key order, so that two writers cannot deadlock.
    texts = ", ".join(f"({key:d}, {delivery_id:d}, %s)" for key, delivery_id in rows)
    raw.execute(
        f"INSERT INTO {CORRELATIONS} (id, delivery_id, noted_at) VALUES {texts} {update}",
        [raw.text(now)] * len(rows),
    )
    ours = raw.listed(key for key, _ in rows)
    # Locked, so that this sees callbacks committed after the transaction began.
    found = raw.read(
        f"SELECT id, delivery_id, ok, CAST(noted_at AS CHAR) FROM {CORRELATIONS} "
        f"WHERE id IN ({ours}) AND ok IS NOT NULL{raw.locked()}"
    )
    if not found:
        return {}
    gone = raw.listed(key for key, *_ in found)
    raw.execute(
        f"UPDATE {CORRELATIONS} SET ok = NULL, noted_at = %s WHERE id IN ({gone})", [raw.text(now)]
    )
    words = {
        delivery_id: bool(ok)
        for key, delivery_id, ok, said_at in found
        if raw.instant(said_at) >= since[key].accepted_at - CLOCKS_DIFFER
    }
    metrics.ACKS.labels(acks.AckResult.EARLY).inc(len(words))
    metrics.ACKS.labels("foreign").inc(len(found) - len(words))
    return words


def refused(consumer_id: int, failure_count: int, event_type: str) -> Transition:
    """Return the transition after the consumer reported a failure."""
    view = config_cache.consumers({consumer_id}).get(consumer_id)
    rule = view.retry_for(event_type) if view else backoff.NEVER
    return acks.refused(
        failure_count=failure_count,
        max_attempts=rule.max_attempts,
        policy=rule.policy,
        jitter=randomness.jitter(),
        reason=Reason.RETRY,
    )


def wait_of(consumer_id: int) -> timedelta:
    """Return the time to wait for the consumer's acknowledgements; 0 if it does not send any."""
    view = config_cache.consumers({consumer_id}).get(consumer_id)
    mode = acks.mode_of(view.ack) if view else None
    return timedelta(seconds=mode.wait_s if mode else 0.0)


def move(moves: Sequence[Move], now: datetime) -> None:
    """Apply transitions to locked deliveries; the caller updates counters and lanes."""
    alike: dict[tuple[DeliveryState, Reason, bool, bool], list[Move]] = {}
    for one in moves:
        to = one.transition
        alike.setdefault((to.state, to.reason, to.charged, to.due_in is None), []).append(one)
    for (state, reason, charged, is_over), some in alike.items():
        cases = " ".join(f"WHEN {one.delivery_id:d} THEN %s" for one in some)
        dues = [raw.text(now + timedelta(seconds=one.transition.due_in or 0.0)) for one in some]
        due = "NULL" if is_over else f"CASE id {cases} END"
        raw.execute(
            f"UPDATE {DELIVERIES} SET state = %s, reason = %s, due_at = {due}, finished_at = %s, "
            f"lease_owner = NULL, failure_count = failure_count + {charged:d}, "
            f"version = version + 1 "
            f"WHERE id IN ({raw.listed(one.delivery_id for one in some)})",
            [
                state.value,
                reason.value,
                *([] if is_over else dues),
                raw.text(now) if is_over else None,
            ],
        )


def _silently(row: Waiting) -> Transition:
    view = config_cache.consumers().get(row.consumer_id)
    rule = view.retry_for(row.event_type) if view else backoff.NEVER
    return acks.timed_out(
        acks.mode_of(view.ack) if view else None,
        failure_count=row.failure_count,
        max_attempts=rule.max_attempts,
        policy=rule.policy,
        jitter=randomness.jitter(),
    )
