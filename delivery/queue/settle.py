"""Record finished attempts and move their deliveries, fenced by the attempt number."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple, TypeAlias

from django.db import IntegrityError

from channels_app import failpoints
from channels_app.core.encryption import KeyMissing
from channels_app.database import raw, transactions
from channels_app.database.raw import dialect
from channels_app.models import new_id, reseed_ids
from channels_app.registry import data_encryption
from channels_app.registry.cache import config_cache
from delivery import metrics, transitions
from delivery.acks import correlations, decisions
from delivery.core.acks import confirmed
from delivery.core.lifecycle import ClaimedDelivery, DeliveryState, Transition
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Delivery
from delivery.transitions import Due, Move

Expect: TypeAlias = Callable[[int, datetime], object]
"""Called with a consumer's id and when its next delivery is due."""
TABLE = Delivery._meta.db_table
MAX_ERROR = 300
"""Characters of an error that are stored."""
ATTEMPTS = raw.Insert(
    Attempt,
    numbers=("id", "delivery_id", "number", "total_ms"),
    values=(
        *("started_at", "outcome", "status_code", "error", "answer_headers", "answer_excerpt"),
        *("connect_ms", "first_byte_ms", "remote_address", "worker"),
    ),
)


class Result(NamedTuple):
    """One finished attempt, and the transition of its delivery."""

    claimed: ClaimedDelivery
    transition: Transition
    outcome: Outcome
    started_at: datetime
    worker: str
    """The process that made the attempt."""
    status: int | None = None
    error: str = ""
    answer_headers: str = ""
    excerpt: bytes = b""
    connect_ms: int | None = None
    first_byte_ms: int | None = None
    total_ms: int = 0
    remote_address: str = ""
    provider_id: str = ""
    """The consumer's own id for the delivery, which its callbacks use."""
    seals: bool = False
    """Whether the channel encrypts bodies. If so, the response is encrypted too: it may repeat
    one."""


def settle(
    results: Sequence[Result], *, now: datetime, slot: int, expect: Expect | None = None
) -> int:
    """Write ``results`` in one transaction; return how many deliveries this caller still held.

    ``expect`` is called when a result makes the next delivery of an ordering key due; without it
    those who deliver are woken.

    If another attempt has taken a delivery, its result changes nothing (S0-37): the lease had
    expired, and the newer attempt decides.
    """
    return len(close(results, now=now, slot=slot, expect=expect))


def close(
    results: Sequence[Result], *, now: datetime, slot: int, expect: Expect | None = None
) -> Sequence[Result]:
    """Do the same as `settle`, and return the results that were written."""
    if not results:
        return results
    results = [_stored(result) for result in results]
    wakes = expect is None
    # Nearly always the caller still holds all deliveries. The fence in each UPDATE and its row
    # count confirm that without reading a row. If a count differs, or an attempt of that number
    # exists, a second try first locks the deliveries that are still held. So does the first one
    # where an acknowledgement may have come before its attempt: it decides then.
    awaiting = config_cache.awaiting()
    may_be_acknowledged = any(
        result.provider_id or result.claimed.consumer_id in awaiting for result in results
    )
    try:
        ours, due = transactions.run(
            lambda: _write(results, now, slot, locks=may_be_acknowledged, wakes=wakes)
        )
    except (transitions.LostRace, IntegrityError):
        ours, due = transactions.run(
            lambda: _write(results, now, slot, locks=True, wakes=wakes), on_collision=reseed_ids
        )
    if expect is not None:
        for consumer_id, due_at in due.items():
            expect(consumer_id, due_at)
    metrics.count_attempts((result.outcome, result.total_ms / 1000) for result in ours)
    metrics.LATE_RESULTS.inc(len(results) - len(ours))
    return ours


def bare(result: Result) -> Result:
    """Return the result without the consumer's response."""
    return result._replace(error="The answer could not be stored.", answer_headers="", excerpt=b"")


def _write(
    results: Sequence[Result], now: datetime, slot: int, *, locks: bool, wakes: bool
) -> tuple[Sequence[Result], Due]:
    """Return the results, and when the next deliveries of their keys are due. Raises LostRace."""
    if locks:
        results = _overruled(_held(results), now)
    if not results:
        return results, {}
    moves = [
        Move(
            result.claimed,
            result.transition,
            outcome=result.outcome,
            status_code=result.status,
            fence=result.claimed.attempt,
        )
        for result in results
    ]
    attempts = ATTEMPTS.statements(map(_attempt, results))
    due = transitions.apply(moves, now=now, slot=slot, beside=attempts, wakes=wakes)
    failpoints.reach("in_settle")
    return results, due


def _held(results: Sequence[Result]) -> Sequence[Result]:
    """Lock deliveries by primary key, and return the results whose attempts are still current."""
    ids = raw.listed(result.claimed.id for result in results)
    current = raw.read(
        f"SELECT id, attempt_count FROM {TABLE} WHERE id IN ({ids}) AND state = %s{dialect.locked}",
        [DeliveryState.IN_FLIGHT.value],
    )
    first = {(result.claimed.id, result.claimed.attempt): result for result in reversed(results)}
    return [first[key] for key in current if key in first]


def _overruled(results: Sequence[Result], now: datetime) -> Sequence[Result]:
    """Apply acknowledgements that arrived before their attempts; they take precedence.

    The deliveries are locked: an acknowledgement is stored by now, or waits for the result.
    """
    if not results:
        return results
    acknowledgements = decisions.early(result.claimed.id for result in results)
    by_provider = correlations.correlated(
        (
            correlations.Named(
                *(result.claimed.consumer_id, result.claimed.id),
                *(result.provider_id, result.claimed.accepted_at),
            )
            for result in results
            if result.provider_id
        ),
        now,
    )
    for delivery_id, ok in by_provider.items():
        # The consumer may have acknowledged a delivery that its provider reported as failed.
        acknowledgements[delivery_id] = ok or acknowledgements.get(delivery_id, False)
    return [_acknowledged(result, acknowledgements) for result in results]


def _acknowledged(result: Result, acknowledgements: Mapping[int, bool]) -> Result:
    claimed, to = result.claimed, result.transition
    is_ok = acknowledgements.get(claimed.id)
    if is_ok:
        # A request that failed still counts as a failure.
        return result._replace(transition=replace(confirmed(), charged=to.charged))
    if is_ok is False and to.state is DeliveryState.AWAITING_ACK:
        to = decisions.refused(claimed.consumer_id, claimed.failure_count, claimed.event_type)
        return result._replace(transition=to)
    return result


def _stored(result: Result) -> Result:
    """Return the result with the consumer's response as it is stored."""
    # Only a rejection's error comes from the consumer; the broker writes all others.
    rejection = result.error[:MAX_ERROR] if result.outcome is Outcome.REJECTED else ""
    if not (result.seals and (rejection or result.answer_headers or result.excerpt)):
        plain = data_encryption.plain_response(result.excerpt)
        return result if plain is result.excerpt else result._replace(excerpt=plain)
    answer = data_encryption.StoredResponse(rejection, result.answer_headers, result.excerpt)
    claimed = result.claimed
    try:
        sealed = data_encryption.encrypt_response(claimed.id, claimed.attempt, answer)
    except KeyMissing:
        return bare(result)
    return result._replace(
        error="" if rejection else result.error, answer_headers="", excerpt=sealed
    )


def _attempt(result: Result) -> raw.Row:
    claimed = result.claimed
    return (
        (new_id(), claimed.id, claimed.attempt, result.total_ms),
        (
            *(raw.text(result.started_at), result.outcome.value, result.status),
            *(result.error[:MAX_ERROR], result.answer_headers, result.excerpt),
            *(result.connect_ms, result.first_byte_ms, result.remote_address),
            result.worker[:100],
        ),
    )
