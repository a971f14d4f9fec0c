"""Cancel: take back what was not sent yet, one delivery, one message, or a removed consumer's."""

from collections import Counter as Tally
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import F

from channels_app import failpoints, transactions
from channels_app.errors import Conflict, NotFound, Stale
from channels_app.models import AuditEntry, Consumer, Message, new_id
from channels_app.rules import ids, times
from channels_app.rules.conditions import ALWAYS, Condition
from delivery import lanes, metrics
from delivery.models import Attempt, Counter, Delivery
from delivery.rules.asker import Asker
from delivery.rules.lifecycle import DeliveryState, Reason
from delivery.rules.outcome import Outcome

QUEUED = DeliveryState.QUEUED.value
CANCELLED = DeliveryState.CANCELLED.value
HELD = {
    DeliveryState.IN_FLIGHT.value: Reason.LEASE_EXPIRED,
    DeliveryState.AWAITING_ACK.value: Reason.ACK_TIMEOUT,
}


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What became of a message."""

    message: Message
    cancelled_count: int
    """Deliveries that this call took back."""
    states: dict[str, int]
    """All its deliveries by state, afterwards."""


def cancel_one(delivery_id: int, asker: Asker, *, now: datetime, slot: int = 0) -> Delivery:
    """Take back one queued delivery. Raises NotFound, or Conflict when it is not queued."""

    def write() -> Delivery:
        row = Delivery.objects.select_for_update().filter(id=delivery_id).first()
        if row is None:
            raise NotFound("unknown_delivery", "There is no such delivery.")
        if row.state != QUEUED:
            raise Conflict(
                "not_queued", f"The delivery is {row.state}: only a queued one can be cancelled."
            )
        _take_back([(row.id, row.consumer_id)], Reason.CANCELLED, now, slot)
        AuditEntry.record(
            asker.actor,
            "delivery.cancel",
            f"delivery:{ids.to_public(ids.DELIVERY, row.id)}",
            team_id=row.consumer.team_id,
            reason=asker.reason,
            before={"state": row.state},
            after={"state": CANCELLED},
        )
        return Delivery.objects.get(id=row.id)

    return transactions.run(write)


def cancel_message(
    message_id: int,
    asker: Asker,
    *,
    now: datetime,
    slot: int = 0,
    condition: Condition = ALWAYS,
    unless_sent: bool = False,
) -> Cancelled:
    """Take back what is still queued of a message; before its fan-out, the message itself.

    What is in flight finishes its attempt, and may be queued again if that fails: a lease is not
    broken (S4-23). Doing it twice is harmless. Raises NotFound and Stale; with ``unless_sent``
    Conflict where nothing is queued and something is being sent, so that the caller asks again.
    """
    cancelled = transactions.run(
        lambda: _cancel_message(message_id, asker, now, slot, condition, unless_sent)
    )
    failpoints.reach("after_cancel")
    return cancelled


def _cancel_message(
    message_id: int,
    asker: Asker,
    now: datetime,
    slot: int,
    condition: Condition,
    unless_sent: bool,
) -> Cancelled:
    # Waits for a fan-out that is being written: then its deliveries are there.
    message = Message.objects.select_for_update().filter(id=message_id).first()
    if message is None:
        raise NotFound("unknown_message", "There is no such message.")
    if not condition.holds(message.version):
        raise Stale("stale_version", "The message has changed since; read it again.")
    queued = list(
        Delivery.objects.filter(message_id=message_id, state=QUEUED)
        .order_by("consumer_id")
        .select_for_update()
        .values_list("id", "consumer_id")
    )
    if unless_sent and not queued:
        _refuse_sent(message_id)
    before = {
        "state": message.state,
        "queued": len(queued),
        "due_at": times.text(message.due_at),
    }
    _take_back(queued, Reason.CANCELLED, now, slot)
    if _close(message, now) or queued:
        AuditEntry.record(
            asker.actor,
            "message.cancel",
            f"message:{ids.to_public(ids.MESSAGE, message.id)}",
            team_id=message.producer.team_id if message.producer else None,
            reason=asker.reason,
            before=before,
            after={
                "state": message.state,
                "queued": 0,
                "cancelled": len(queued),
                "due_at": times.text(message.due_at),
            },
        )
    failpoints.reach("in_cancel")
    rows = Delivery.objects.filter(message_id=message_id)
    states = Tally[str](rows.values_list("state", flat=True))
    return Cancelled(message, len(queued), dict(states))


def _refuse_sent(message_id: int) -> None:
    """Raises Conflict while an attempt is open."""
    held = Delivery.objects.filter(message_id=message_id, state__in=HELD)
    until = held.order_by("-due_at").values_list("due_at", flat=True).first()
    if until is not None:
        raise Conflict("in_flight", f"It is being delivered, until {times.text(until)} at most.")


def _close(message: Message, now: datetime) -> bool:
    """Keep the message from being sent to anyone else; whether it was open until now."""
    if message.state == Message.State.ACCEPTED:
        message.state = Message.State.CANCELLED
    elif message.state == Message.State.DISPATCHED and not _has_expired(message, now):
        # A consumer that registers later must not be given it by a backfill.
        message.expires_at = now
    else:
        return False
    # Due no more: the timeline is what is going to be sent.
    message.due_at = min(message.due_at, now)
    message.version += 1
    message.save(update_fields=["state", "due_at", "expires_at", "version"])
    return True


def _has_expired(message: Message, now: datetime) -> bool:
    return message.expires_at is not None and message.expires_at <= now


def cancel_retired(now: datetime, slot: int, batch: int) -> int:
    """Cancel up to ``batch`` queued deliveries of removed consumers; returns how many rows moved.

    For a sweep: whoever removes a consumer does not wait for its pile. A lapsed lease, which no
    claim will find any more, is queued first and cancelled by the next run.
    """
    retired = list(
        Consumer.objects.filter(state=Consumer.State.RETIRED).values_list("id", flat=True)
    )
    if not retired:
        return 0
    count = transactions.run(
        lambda: _cancel_retired(retired, now, slot, batch), on_collision=new_id.reseed
    )
    metrics.SWEPT.labels("retired").inc(count)
    return count


def _cancel_retired(retired: list[int], now: datetime, slot: int, batch: int) -> int:
    rows = list(
        Delivery.objects.filter(consumer_id__in=retired, state=QUEUED)
        .select_for_update(skip_locked=True)
        .values_list("id", "consumer_id")[:batch]
    )
    _take_back(rows, Reason.RETIRED, now, slot)
    return len(rows) + _end_leases(retired, now, slot, batch)


def _end_leases(retired: list[int], now: datetime, slot: int, batch: int) -> int:
    """Queue what is held beyond its time; the holder's late result finds another state."""
    rows = list(
        Delivery.objects.filter(consumer_id__in=retired, state__in=HELD, due_at__lte=now)
        .select_for_update(skip_locked=True)
        .only("id", "consumer_id", "state", "attempt_count")[:batch]
    )
    open_attempts = [row for row in rows if row.state == DeliveryState.IN_FLIGHT]
    Attempt.objects.bulk_create(
        [
            Attempt(
                id=new_id(),
                delivery_id=row.id,
                number=row.attempt_count,
                started_at=now,
                outcome=Outcome.LEASE_EXPIRED.value,
                error="The worker vanished before it could record an answer.",
            )
            for row in open_attempts
        ]
    )
    tally: Tally[tuple[int, str]] = Tally()
    for row in rows:
        tally[row.consumer_id, row.state] -= 1
        tally[row.consumer_id, QUEUED] += 1
    for state, reason in HELD.items():
        Delivery.objects.filter(id__in=[row.id for row in rows], state=state).update(
            state=QUEUED,
            reason=reason.value,
            due_at=now,
            lease_owner=None,
            version=F("version") + 1,
        )
    Counter.add(tally, slot)
    return len(rows)


def _take_back(rows: Iterable[tuple[int, int]], reason: Reason, now: datetime, slot: int) -> None:
    """Cancel locked queued rows (id, consumer id) and move the counters."""
    rows = list(rows)
    Delivery.objects.filter(id__in=[row[0] for row in rows], state=QUEUED).update(
        state=CANCELLED,
        reason=reason.value,
        due_at=None,
        lease_owner=None,
        finished_at=now,
        version=F("version") + 1,
    )
    tally: Tally[tuple[int, str]] = Tally()
    for _, consumer_id in rows:
        tally[consumer_id, QUEUED] -= 1
        tally[consumer_id, CANCELLED] += 1
    Counter.add(tally, slot)
    lanes.leave_rows(rows, now)
