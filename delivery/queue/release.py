"""Release the leases of workers that died or stopped, without waiting for the leases to end."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from channels_app import failpoints
from channels_app.access.principal import Principal
from channels_app.core import ids
from channels_app.core.errors import NotFound, Refused
from channels_app.database import transactions
from channels_app.models import AuditEntry, Consumer, Message, new_id, reseed_ids
from channels_app.registry.cache import config_cache
from delivery import metrics, transitions
from delivery.acks import decisions
from delivery.core import lifecycle
from delivery.core.lifecycle import ClaimedDelivery, DeliveryState, Reason, Transition
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Delivery
from delivery.transitions import Move

BATCH = 500


@dataclass(frozen=True, slots=True)
class _Ending:
    """How an unfinished attempt is recorded."""

    reason: Reason
    outcome: Outcome
    error: str


_STOPPED = _Ending(
    Reason.INTERRUPTED,
    Outcome.INTERRUPTED,
    "The worker stopped before it recorded a response.",
)
_TAKEN = _Ending(
    Reason.INTERRUPTED, Outcome.INTERRUPTED, "An operator released it from its worker."
)
_LAPSED = _Ending(
    Reason.LEASE_EXPIRED,
    Outcome.LEASE_EXPIRED,
    "The worker died before it recorded a response.",
)


def release_owner(owner: int, *, now: datetime, slot: int) -> int:
    """Queue again all deliveries of the pump of generation ``owner``; return how many.

    They count as interruptions, not as failures of the consumers.
    """
    everybody = Consumer.objects.values_list("id", flat=True)
    total = _release_all(_held(everybody).filter(lease_owner=owner), _STOPPED, now, slot)
    metrics.SWEEP_ROWS.labels("orphaned_lease").inc(total)
    return total


def release_lapsed(*, now: datetime, slot: int, absent: Collection[int] = ()) -> int:
    """Queue again expired leases of inactive or ``absent`` consumers; return how many.

    No pump claims for these consumers, so no claim finds such a row: it could neither be cancelled
    nor moved, and that of a retired consumer would stay in flight for ever.
    """
    is_off = ~Q(state=Consumer.State.ACTIVE) | Q(channel__paused=True) | Q(id__in=absent)
    off = Consumer.objects.filter(is_off)
    rows = _held(off.values_list("id", flat=True)).filter(due_at__lte=now)
    return _release_all(rows, _LAPSED, now, slot)


def release_lease(
    delivery_id: int, principal: Principal, *, now: datetime, slot: int = 0
) -> Delivery:
    """Release a pull consumer's lease of a delivery; the holder can no longer settle it.

    It does not count as a failure. Raises NotFound, or Refused when no pull consumer holds it.
    """

    def write() -> Delivery:
        row = Delivery.objects.select_for_update().filter(id=delivery_id).first()
        if row is None:
            raise NotFound("unknown_delivery", "There is no such delivery.")
        is_held = row.state == DeliveryState.IN_FLIGHT and (row.lease_owner or 0) < 0
        if not is_held:
            raise Refused("No worker of a pull consumer holds the delivery.")
        _release(Delivery.objects.filter(id=row.id), _TAKEN, now, slot)
        AuditEntry.record(
            principal.actor,
            "delivery.release",
            f"delivery:{ids.to_public(ids.DELIVERY, row.id)}",
            team_id=row.consumer.team_id,
            reason=principal.reason,
            before={"state": row.state},
            after={"state": DeliveryState.QUEUED.value},
        )
        return Delivery.objects.get(id=row.id)

    return transactions.run(write, on_collision=reseed_ids)


def give_back(
    rows: Collection[ClaimedDelivery],
    *,
    owner: int,
    due_at: datetime,
    now: datetime,
    slot: int,
    reason: Reason = Reason.UNREADABLE,
) -> int:
    """Undo claims whose attempts cannot begin; return how many deliveries ``owner`` still held.

    No attempt was made and none is counted: the next claim has the same number. A process that
    lacks a key therefore uses up no attempts, however often it tries. Also used if the receiver has
    disconnected; ``reason`` tells which.
    """
    return transactions.run(lambda: _return_claims(rows, owner, due_at, now, slot, reason))


def _return_claims(
    rows: Collection[ClaimedDelivery],
    owner: int,
    due_at: datetime,
    now: datetime,
    slot: int,
    reason: Reason,
) -> int:
    fences = {row.id: row.attempt for row in rows}
    # Fenced by owner too: after the release another owner's claim has the same number.
    held = Delivery.objects.select_for_update().filter(
        id__in=fences, state=DeliveryState.IN_FLIGHT.value, lease_owner=owner
    )
    to = Transition(DeliveryState.QUEUED, reason, due_in=0.0, charged=False, is_free=True)
    moves = [
        Move(row, to, due_at, undoes_claim=True)
        for row in held
        if row.attempt_count == fences[row.id]
    ]
    if moves:
        transitions.apply(moves, now=now, slot=slot)
    return len(moves)


def _held(consumer_ids: Iterable[int]) -> QuerySet[Delivery]:
    return Delivery.objects.filter(
        consumer_id__in=list(consumer_ids),  # the index begins with it
        state=DeliveryState.IN_FLIGHT.value,
    )


def _release_all(held: QuerySet[Delivery], ending: _Ending, now: datetime, slot: int) -> int:
    total = 0
    while released := transactions.run(
        lambda: _release(held, ending, now, slot), on_collision=reseed_ids
    ):
        total += released
    return total


def _release(held: QuerySet[Delivery], ending: _Ending, now: datetime, slot: int) -> int:
    rows = list(held.select_for_update(skip_locked=True)[:BATCH])
    if not rows:
        return 0
    Attempt.objects.bulk_create(
        [
            Attempt(
                id=new_id(),
                delivery_id=row.id,
                number=row.attempt_count,
                started_at=now,
                outcome=ending.outcome.value,
                error=ending.error,
            )
            for row in rows
        ]
    )
    moves = decisions.decided(rows)
    decided = {move.row.id for move in moves}
    open_rows = [row for row in rows if row.id not in decided]
    consumers = config_cache.consumers({row.consumer_id for row in open_rows})
    scheduled = _scheduled(open_rows, now)
    for row in open_rows:
        consumer = consumers.get(row.consumer_id)
        is_charged = ending is _LAPSED and consumer is not None and consumer.charges_leases
        to = Transition(DeliveryState.QUEUED, ending.reason, due_in=0.0, charged=is_charged)
        if is_charged and consumer is not None:
            rule = consumer.retry_for(row.event_type)
            if lifecycle.is_last_lease(row.failure_count, rule=rule):
                to = lifecycle.EXHAUST
        moves.append(Move(row, to, scheduled.get(row.message_id), outcome=ending.outcome))
    transitions.apply(moves, now=now, slot=slot)
    failpoints.reach("in_release")
    return len(rows)


def _scheduled(rows: list[Delivery], now: datetime) -> dict[int, datetime]:
    """Return the due times of messages that are not due yet."""
    messages = Message.objects.filter(id__in={row.message_id for row in rows}, due_at__gt=now)
    return dict(messages.values_list("id", "due_at"))
