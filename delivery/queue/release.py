"""Release the leases of workers that died or stopped, without waiting for the leases to end."""

from collections import Counter as Tally
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import F, Q, QuerySet

from channels_app import failpoints
from channels_app.access.principal import Principal
from channels_app.core import ids
from channels_app.core.errors import NotFound, Refused
from channels_app.database import transactions
from channels_app.models import AuditEntry, Consumer, Message, new_id, reseed_ids
from channels_app.registry.cache import config_cache
from delivery import dead_letters, metrics
from delivery.acks import callbacks
from delivery.core import lifecycle
from delivery.core.lifecycle import FINISHED, ClaimedDelivery, DeliveryState, Reason
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Counter, Delivery
from delivery.ordering import key_queue

BATCH = 500


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
    return transactions.run(lambda: _return_claims(rows, owner, due_at, slot, reason))


def _return_claims(
    rows: Collection[ClaimedDelivery], owner: int, due_at: datetime, slot: int, reason: Reason
) -> int:
    fences = {row.id: row.attempt for row in rows}
    # Fenced by owner too: after the release another owner's claim has the same number.
    held = Delivery.objects.select_for_update().filter(
        id__in=fences, state=DeliveryState.IN_FLIGHT.value, lease_owner=owner
    )
    ours = [row for row in held if row.attempt_count == fences[row.id]]
    Delivery.objects.filter(id__in=[row.id for row in ours]).update(
        state=DeliveryState.QUEUED.value,
        reason=reason.value,
        due_at=due_at,
        lease_owner=None,
        attempt_count=F("attempt_count") - 1,
        version=F("version") + 1,
    )
    tally: Tally[tuple[int, str]] = Tally()
    for row in ours:
        tally[row.consumer_id, DeliveryState.IN_FLIGHT.value] -= 1
        tally[row.consumer_id, DeliveryState.QUEUED.value] += 1
    Counter.add(tally, slot)
    return len(ours)


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
    to = _decide(rows, now)
    open_rows = [row for row in rows if row.id not in to]
    charged = _charged(open_rows) if ending is _LAPSED else []
    to |= _give_up(charged, now)
    free = [row for row in open_rows if row not in charged]
    for counted, some in (("failure_count", charged), ("interruption_count", free)):
        for due_at, numbers in _due([row for row in some if row.id not in to], now).items():
            Delivery.objects.filter(id__in=numbers).update(
                state=DeliveryState.QUEUED.value,
                reason=ending.reason.value,
                outcome=ending.outcome.value,
                due_at=due_at,
                lease_owner=None,
                version=F("version") + 1,
                **{counted: F(counted) + 1},
            )
    tally: Tally[tuple[int, str]] = Tally()
    for row in rows:
        tally[row.consumer_id, DeliveryState.IN_FLIGHT.value] -= 1
        tally[row.consumer_id, to.get(row.id, DeliveryState.QUEUED).value] += 1
    Counter.add(tally, slot)
    failpoints.reach("in_release")
    return len(rows)


def _decide(rows: list[Delivery], now: datetime) -> dict[int, DeliveryState]:
    """Apply acknowledgements that arrived before, and return the new states."""
    decided = callbacks.decided(rows)
    callbacks.move(decided, now)
    to = {move.delivery_id: move.transition.state for move in decided}
    for state in FINISHED & set(to.values()):
        over = [(row.id, row.consumer_id) for row in rows if to.get(row.id) is state]
        key_queue.leave_rows(over, now, dead=state is DeliveryState.DEAD)
        if state is DeliveryState.DEAD:
            dead_letters.note(over, now)
    return to


def _charged(rows: list[Delivery]) -> list[Delivery]:
    """Return rows whose expired leases count as failures of their consumers."""
    views = config_cache.consumers({row.consumer_id for row in rows})
    return [row for row in rows if (it := views.get(row.consumer_id)) and it.charges_leases]


def _give_up(charged: list[Delivery], now: datetime) -> dict[int, DeliveryState]:
    """Finish rows for which this was the last attempt."""
    views = config_cache.consumers()
    last = [
        row
        for row in charged
        if lifecycle.is_last_lease(
            row.failure_count,
            rule=views[row.consumer_id].retry_for(row.event_type),
        )
    ]
    if last:
        Delivery.objects.filter(id__in=[row.id for row in last]).update(
            state=DeliveryState.DEAD.value,
            reason=Reason.EXHAUSTED.value,
            outcome=Outcome.LEASE_EXPIRED.value,
            due_at=None,
            finished_at=now,
            lease_owner=None,
            failure_count=F("failure_count") + 1,
            version=F("version") + 1,
        )
        key_queue.leave_rows([(row.id, row.consumer_id) for row in last], now, dead=True)
        dead_letters.note([(row.id, row.consumer_id) for row in last], now)
    return {row.id: DeliveryState.DEAD for row in last}


def _due(rows: list[Delivery], now: datetime) -> dict[datetime, list[int]]:
    """Group rows by when they are due: now, or at their message's time if that is later."""
    messages = Message.objects.filter(id__in={row.message_id for row in rows}, due_at__gt=now)
    early = dict(messages.values_list("id", "due_at"))
    due: dict[datetime, list[int]] = {}
    for row in rows:
        due.setdefault(early.get(row.message_id, now), []).append(row.id)
    return due
