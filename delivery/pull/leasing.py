"""Process what lease holders report: delivered, failed, given back, or still working."""

import itertools
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import DataError, IntegrityError

from channels_app import failpoints, randomness
from channels_app.database import clock
from channels_app.database.transactions import GroupCommit
from channels_app.registry import data_encryption
from channels_app.registry.cache import ConsumerConfig, config_cache
from delivery.core import leases, lifecycle
from delivery.core.acks import confirmed
from delivery.core.leases import Lease
from delivery.core.lifecycle import ClaimedDelivery, Transition
from delivery.core.outcome import Outcome
from delivery.queue import lease_rows, settle
from delivery.queue.settle import Result

logger = logging.getLogger(__name__)

PURPOSE = b"leases"
"""Purpose of the key that signs tokens."""
MAX_SHARED = 200
"""Leases of several callers that one transaction ends; a single caller may have more."""
SOON_S = 1.0
MAX_LEASE = timedelta(hours=12)
"""Maximum time from claim to the end of a lease, however often it is extended."""
MAX_DURATION_MS = 2**31 - 1
"""Longest duration that is stored, 24 days: a lease that no other worker takes is never too old."""


def token(lease: Lease) -> str:
    """Return the token of a lease. Raises core.encryption.KeyMissing."""
    return leases.to_token(lease, data_encryption.signing_key(PURPOSE))


def lease_of(text: str) -> Lease | None:
    """Return the lease of a valid token; None for any other text. Raises KeyMissing."""
    candidates = (leases.from_token(text, key) for key in data_encryption.signing_keys(PURPOSE))
    return next((lease for lease in candidates if lease is not None), None)


def end(
    leases: Collection[Lease],
    outcome: Outcome,
    *,
    delay_s: float | None = None,
    error: str = "",
    is_final: bool = False,
) -> set[Lease]:
    """Close the attempts with this outcome; return the leases that were still current.

    The transition is the same as for a push consumer (`core.lifecycle`), including attempts and
    backoff; ``delay_s`` replaces the backoff. With ``is_final`` a failed delivery is dead at once.
    An expired lease is still valid while no other worker has claimed the delivery. Repeating the
    call is harmless. Threads that end leases at the same time share a transaction. A lease that
    the database refuses to write is not ended, and does not stop the others.
    """
    now = clock.now()
    consumers = config_cache.consumers({lease.consumer_id for lease in leases})
    event_types = {} if outcome is Outcome.DELIVERED else _event_types(leases, consumers)
    results = []
    for lease in leases:
        consumer = consumers.get(lease.consumer_id)
        if consumer is not None:
            results.append(
                Result(
                    claimed=_claimed(lease, now),
                    transition=_move(
                        lease,
                        consumer,
                        outcome,
                        delay_s,
                        is_final=is_final,
                        event_type=event_types.get(lease.delivery_id, ""),
                    ),
                    outcome=outcome,
                    started_at=lease.taken_at,
                    worker=lease.worker,
                    error=error,
                    seals=consumer.encrypt_bodies,
                    total_ms=_duration_ms(lease, now),
                )
            )
    closed = _closed(results)
    ended = {lease for lease in leases if _End(lease.delivery_id, lease.attempt, outcome) in closed}
    failpoints.reach("after_pull_settle")
    return ended | lease_rows.ended_so(set(leases) - ended, outcome)


def extend(leases: Iterable[Lease], lease_ms: int) -> tuple[set[Lease], set[Lease]]:
    """Extend leases from now; return the extended ones, and those that reached `MAX_LEASE`."""
    now = clock.now()
    wanted = now + timedelta(milliseconds=lease_ms)
    ends = {lease: min(wanted, lease.taken_at + MAX_LEASE) for lease in leases}
    done = lease_rows.extend({lease: at for lease, at in ends.items() if at > now})
    return done, {lease for lease, at in ends.items() if at <= now}


def _duration_ms(lease: Lease, now: datetime) -> int:
    milliseconds = clock.elapsed(lease.taken_at, now) // timedelta(milliseconds=1)
    return min(milliseconds, MAX_DURATION_MS)


class _End(NamedTuple):
    """The end of an attempt."""

    delivery_id: int
    attempt: int
    outcome: Outcome


def _closed(results: Sequence[Result]) -> set[_End]:
    """Write the results; return the ends that were written.

    Raises what the database raises if it refuses a single result.
    """
    if not results:
        return set()
    try:
        return _group_commit.run(results, len(results))
    except (DataError, IntegrityError):
        if len(results) == 1:
            raise
    closed: set[_End] = set()
    for result in results:
        try:
            closed |= _closed([result])
        except (DataError, IntegrityError):
            logger.exception("the lease of delivery %d cannot be written", result.claimed.id)
    return closed


def _close(orders: Sequence[Sequence[Result]]) -> Sequence[set[_End]]:
    results = list(itertools.chain.from_iterable(orders))
    closed = settle.close(results, now=clock.now(), slot=os.getpid())
    ends = {_End(result.claimed.id, result.claimed.attempt, result.outcome) for result in closed}
    return [ends] * len(orders)


_group_commit = GroupCommit(_close, max_orders=MAX_SHARED, max_size=MAX_SHARED)


def _event_types(
    leases: Iterable[Lease], consumers: Mapping[int, ConsumerConfig]
) -> dict[int, str]:
    """Return event types by delivery where the retry rule needs them; tokens do not carry them."""
    asked = [
        lease.delivery_id
        for lease in leases
        if (consumer := consumers.get(lease.consumer_id)) and consumer.retry_overrides
    ]
    return lease_rows.event_types(asked) if asked else {}


def _move(
    lease: Lease,
    consumer: ConsumerConfig,
    outcome: Outcome,
    delay_s: float | None,
    *,
    is_final: bool,
    event_type: str,
) -> Transition:
    if outcome is Outcome.DELIVERED:
        return confirmed()
    rule = consumer.retry_for(event_type)
    move = lifecycle.after_attempt(
        outcome,
        failure_count=lease.failure_count,
        attempt_count=lease.failure_count + lease.interruption_count + 1,
        max_attempts=rule.max_attempts,
        policy=rule.policy,
        retry_after=None,
        jitter=randomness.jitter(),
        charges_leases=consumer.charges_leases,
        is_final=is_final,
    )
    if delay_s is not None and move.due_in is not None:
        return replace(move, due_in=delay_s)
    return move


def _claimed(lease: Lease, now: datetime) -> ClaimedDelivery:
    """Return the part of the claim that settling needs."""
    return ClaimedDelivery(
        id=lease.delivery_id,
        message_id=0,
        consumer_id=lease.consumer_id,
        attempt=lease.attempt,
        failure_count=lease.failure_count,
        interruption_count=lease.interruption_count,
        priority=0,
        due_at=now,
        accepted_at=lease.accepted_at,
        event_type="",
        ordering_key=lease.ordering_key,
        replayed=False,
        lease_until=now,
    )
