"""Settle: record finished attempts and move their deliveries, fenced by the attempt number."""

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import Case, DateTimeField, F, Value, When

from channels_app import transactions
from channels_app.models import new_id
from delivery import metrics
from delivery.models import Attempt, Counter, Delivery
from delivery.rules.lifecycle import DeliveryState, Transition
from delivery.rules.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Result:
    """One attempt that came to an end, and what follows from it."""

    delivery_id: int
    attempt: int
    transition: Transition
    outcome: Outcome
    started_at: datetime
    status: int | None = None
    error: str = ""
    answer_headers: str = ""
    excerpt: bytes = b""
    connect_ms: int | None = None
    first_byte_ms: int | None = None
    total_ms: int = 0
    remote_address: str = ""


def bare(result: Result) -> Result:
    """The same end of an attempt without what the consumer sent."""
    return replace(result, error="The answer could not be stored.", answer_headers="", excerpt=b"")


def settle(results: Sequence[Result], *, now: datetime, slot: int, worker: str) -> int:
    """Write ``results`` in one transaction; returns how many still were ours to close.

    A result whose delivery was taken by another attempt meanwhile changes nothing (S0-37): its
    lease had lapsed, and the newer attempt decides.
    """
    if not results:
        return 0
    rows = transactions.run(lambda: _settle(results, now, slot, worker), on_collision=new_id.reseed)
    for result, accepted_at in rows:
        metrics.ATTEMPTS.labels(result.outcome.value).inc()
        metrics.ATTEMPT_SECONDS.observe(result.total_ms / 1000)
        state = result.transition.state
        if state in (DeliveryState.DELIVERED, DeliveryState.DEAD):
            metrics.DELIVERIES.labels(state.value).inc()
        if state is DeliveryState.DELIVERED:
            metrics.LATENCY.observe((now - accepted_at).total_seconds())
    metrics.LATE_RESULTS.inc(len(results) - len(rows))
    return len(rows)


def _settle(
    results: Sequence[Result], now: datetime, slot: int, worker: str
) -> list[tuple[Result, datetime]]:
    # Locked by primary key first: which of them are still ours is then certain for the
    # counters, which an UPDATE's row count alone could not tell row by row.
    held = {
        row[0]: row
        for row in Delivery.objects.filter(
            id__in=[result.delivery_id for result in results],
            state=DeliveryState.IN_FLIGHT.value,
        )
        .select_for_update()
        .values_list("id", "attempt_count", "consumer_id", "accepted_at")
    }
    ours = [
        result
        for result in results
        if result.delivery_id in held and held[result.delivery_id][1] == result.attempt
    ]
    tally: Tally[tuple[int, str]] = Tally()
    for result in ours:
        consumer_id = held[result.delivery_id][2]
        tally[consumer_id, DeliveryState.IN_FLIGHT.value] -= 1
        tally[consumer_id, result.transition.state.value] += 1
    _move(ours, now)
    # They carry what consumers answered: not all in one statement, which servers limit in size.
    Attempt.objects.bulk_create([_attempt(result, worker) for result in ours], batch_size=100)
    Counter.add(tally, slot)
    return [(result, held[result.delivery_id][3]) for result in ours]


def _move(results: Sequence[Result], now: datetime) -> None:
    """One UPDATE for all rows that end alike."""
    alike: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        move = result.transition
        end = (move.state, move.reason, move.charged)
        alike.setdefault((*end, result.outcome, result.status, result.attempt), []).append(result)
    for group in alike.values():
        result, move = group[0], group[0].transition
        waits = move.due_in is not None
        Delivery.objects.filter(
            id__in=[row.delivery_id for row in group],
            state=DeliveryState.IN_FLIGHT.value,
            attempt_count=result.attempt,
        ).update(
            state=move.state.value,
            reason=move.reason.value,
            outcome=result.outcome.value,
            status_code=result.status,
            due_at=_due(group, now) if waits else None,
            finished_at=None if waits else now,
            lease_owner=None,
            failure_count=F("failure_count") + (1 if move.charged else 0),
            interruption_count=F("interruption_count") + (0 if move.charged or not waits else 1),
            version=F("version") + 1,
        )


def _due(group: Sequence[Result], now: datetime) -> Case | datetime:
    """When each row may be taken again: jitter makes the instants differ."""
    waits = {row.delivery_id: timedelta(seconds=row.transition.due_in or 0.0) for row in group}
    if len(set(waits.values())) == 1:
        return now + waits[group[0].delivery_id]
    return Case(
        *(When(id=delivery_id, then=Value(now + wait)) for delivery_id, wait in waits.items()),
        output_field=DateTimeField(),
    )


def _attempt(result: Result, worker: str) -> Attempt:
    return Attempt(
        id=new_id(),
        delivery_id=result.delivery_id,
        number=result.attempt,
        started_at=result.started_at,
        outcome=result.outcome.value,
        status_code=result.status,
        error=result.error[:300],
        answer_headers=result.answer_headers,
        answer_excerpt=result.excerpt,
        connect_ms=result.connect_ms,
        first_byte_ms=result.first_byte_ms,
        total_ms=result.total_ms,
        remote_address=result.remote_address,
        worker=worker[:100],
    )
