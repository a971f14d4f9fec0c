"""Cancel deliveries that are not sent yet: of a delivery, a message, or a retired consumer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from django.db.models import F, Max, Value
from django.db.models.functions import Least

from channels_app import failpoints
from channels_app.access.principal import Principal
from channels_app.core import ids, times
from channels_app.core.errors import BrokerError, Conflict, NotFound
from channels_app.core.http import ALWAYS, Precondition
from channels_app.database import transactions
from channels_app.models import AuditEntry, Consumer, Message, new_id, reseed_ids
from channels_app.registry import configuration
from delivery import metrics, transitions
from delivery.core.lifecycle import DeliveryState, Reason, Transition
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Delivery
from delivery.transitions import Move

QUEUED = DeliveryState.QUEUED.value
CANCELLED = DeliveryState.CANCELLED.value
TAKEN = {
    DeliveryState.IN_FLIGHT.value: Transition(
        DeliveryState.QUEUED, Reason.LEASE_EXPIRED, due_in=0.0, charged=False, is_free=True
    ),
    DeliveryState.AWAITING_ACK.value: Transition(
        DeliveryState.QUEUED, Reason.ACK_TIMEOUT, due_in=0.0, charged=False, is_free=True
    ),
}
"""States of a delivery that a worker or the consumer has, and its transition at their end."""
COLUMNS = ("id", "message_id", "consumer_id", "state", "ordering_key", "accepted_at")
"""What a transition needs of a row."""
BATCH_SIZE = 2000
"""Approximate number of deliveries that one transaction cancels."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The result of cancelling a message."""

    message: Message
    cancelled_count: int
    """Deliveries that this call cancelled."""


def cancel_one(delivery_id: int, principal: Principal, *, now: datetime, slot: int = 0) -> Delivery:
    """Cancel one queued delivery. Raises NotFound, or Conflict when it is not queued."""

    def write() -> Delivery:
        row = Delivery.objects.select_for_update().filter(id=delivery_id).first()
        if row is None:
            raise NotFound("unknown_delivery", "There is no such delivery.")
        if row.state != QUEUED:
            raise Conflict(
                "not_queued", f"The delivery is {row.state}: only a queued one can be cancelled."
            )
        take_back([row], now, slot)
        AuditEntry.record(
            principal.actor,
            "delivery.cancel",
            f"delivery:{ids.to_public(ids.DELIVERY, row.id)}",
            team_id=row.consumer.team_id,
            reason=principal.reason,
            before={"state": row.state},
            after={"state": CANCELLED},
        )
        return Delivery.objects.get(id=row.id)

    return transactions.run(write)


def cancel_message(
    message_id: int,
    principal: Principal,
    *,
    now: datetime,
    slot: int = 0,
    condition: Precondition = ALWAYS,
    unless_sent: bool = False,
) -> Cancelled:
    """Cancel a message's queued deliveries; before its fan-out, the message itself.

    A delivery in flight finishes its attempt, and is queued again if that fails: leases are not
    revoked (S4-23). Repeating the call is harmless. Raises NotFound and PreconditionFailed. With
    ``unless_sent``, raises Conflict if nothing is queued and an attempt is open, so that the caller
    tries again.
    """
    wanted = {message_id: condition}
    (done,) = cancel_messages(
        wanted, principal, now=now, slot=slot, unless_sent=unless_sent
    ).values()
    if isinstance(done, BrokerError):
        raise done
    return done


def cancel_messages(
    wanted: Mapping[int, Precondition],
    principal: Principal,
    *,
    now: datetime,
    slot: int = 0,
    unless_sent: bool = False,
) -> dict[int, Cancelled | BrokerError]:
    """Cancel many messages, by key and with the version that each must have; each by itself.

    Messages with together `BATCH_SIZE` deliveries are one transaction of a few statements.
    """
    done: dict[int, Cancelled | BrokerError] = {}
    for group in configuration.in_groups(list(wanted), BATCH_SIZE):
        preconditions = {key: wanted[key] for key in group}
        done |= transactions.run(
            partial(_cancel_messages, preconditions, principal, now, slot, unless_sent)
        )
        failpoints.reach("after_cancel")
    return done


def cancel_waiting(consumer_id: int, *, now: datetime, limit: int, slot: int = 0) -> int:
    """Cancel up to ``limit`` queued deliveries of one consumer; return how many.

    For a caller that cancels all of them in slices and writes a single audit entry.
    """

    def write() -> int:
        queued = Delivery.objects.filter(consumer_id=consumer_id, state=QUEUED).order_by("id")
        # Rows that another transaction holds are being received.
        rows = queued.select_for_update(skip_locked=True).only(*COLUMNS)[:limit]
        return take_back(rows, now, slot)

    return transactions.run(write)


def cancel_retired(now: datetime, slot: int, batch: int) -> int:
    """Cancel up to ``batch`` queued deliveries of retired consumers; return how many rows changed.

    Runs in a sweep, so that retiring a consumer does not wait for its backlog. An expired lease,
    which no claim will find any more, is queued first and cancelled by the next run.
    """
    retired = list(
        Consumer.objects.filter(state=Consumer.State.RETIRED).values_list("id", flat=True)
    )
    if not retired:
        return 0
    count = transactions.run(
        lambda: _cancel_retired(retired, now, slot, batch), on_collision=reseed_ids
    )
    metrics.SWEEP_ROWS.labels("retired").inc(count)
    return count


def take_back(
    rows: Iterable[Delivery], now: datetime, slot: int, reason: Reason = Reason.CANCELLED
) -> int:
    """Cancel queued deliveries that the caller's transaction has locked; return how many."""
    to = Transition(DeliveryState.CANCELLED, reason, due_in=None, charged=False)
    moves = [Move(row, to) for row in rows]
    if moves:
        transitions.apply(moves, now=now, slot=slot)
    return len(moves)


def _cancel_messages(
    wanted: Mapping[int, Precondition],
    principal: Principal,
    now: datetime,
    slot: int,
    unless_sent: bool,
) -> dict[int, Cancelled | BrokerError]:
    # Waits for a fan-out in progress; then its deliveries exist.
    messages = configuration.messages(wanted)
    queued: dict[int, list[Delivery]] = {key: [] for key in messages}
    rows = Delivery.objects.filter(message_id__in=messages, state=QUEUED)
    for row in rows.order_by("message_id", "consumer_id").select_for_update().only(*COLUMNS):
        queued[row.message_id].append(row)
    sent = _sent([key for key in messages if not queued[key]]) if unless_sent else {}
    done: dict[int, Cancelled | BrokerError] = {}
    entries, changed = [], []
    for key, condition in wanted.items():
        message = messages.get(key)
        if message is None:
            done[key] = NotFound("unknown_message", "There is no such message.")
        elif refusal := condition.refusal(message.version, "message"):
            done[key] = refusal
        elif key in sent:
            until = times.text(sent[key])
            done[key] = Conflict("in_flight", f"It is being delivered, until {until} at most.")
        else:
            count = len(queued[key])
            before = {"state": message.state, "due_at": times.text(message.due_at), "queued": count}
            if is_changed := _close(message, now):
                changed.append(message)
            if is_changed or count:
                entries += _entries(message, principal, before)
            done[key] = Cancelled(message, count)
    ours = [row for key in done if isinstance(done[key], Cancelled) for row in queued[key]]
    take_back(ours, now, slot)
    for state in (Message.State.CANCELLED, Message.State.DISPATCHED):
        keys = [message.id for message in changed if message.state == state]
        ends = {"expires_at": now} if state == Message.State.DISPATCHED else {}
        if keys:
            Message.objects.filter(id__in=keys).update(
                state=state, due_at=Least("due_at", Value(now)), version=F("version") + 1, **ends
            )
    AuditEntry.objects.bulk_create(entries)
    failpoints.reach("in_cancel")
    return done


def _sent(message_ids: list[int]) -> dict[int, datetime]:
    """Return the latest end of each message's open attempts; messages without any are absent."""
    rows = Delivery.objects.filter(message_id__in=message_ids, state__in=TAKEN)
    return dict(rows.values_list("message_id").annotate(until=Max("due_at")))


def _close(message: Message, now: datetime) -> bool:
    """Exclude further consumers from the message, without saving it; return whether it was open."""
    if message.state == Message.State.ACCEPTED:
        message.state = Message.State.CANCELLED
    elif message.state == Message.State.DISPATCHED and not _has_expired(message, now):
        # A backfill must not give it to a consumer that registers later.
        message.expires_at = now
    else:
        return False
    # Remove it from the timeline, which shows what is going to be sent.
    message.due_at = min(message.due_at, times.floor_ms(now))
    message.version += 1
    return True


def _has_expired(message: Message, now: datetime) -> bool:
    return message.expires_at is not None and message.expires_at <= now


def _entries(message: Message, principal: Principal, before: dict[str, Any]) -> list[AuditEntry]:
    return AuditEntry.entries(
        principal.actor,
        "message.cancel",
        f"message:{ids.to_public(ids.MESSAGE, message.id)}",
        team_id=message.producer.team_id if message.producer else None,
        reason=principal.reason,
        before=before,
        after={
            "state": message.state,
            "queued": 0,
            "cancelled": before["queued"],
            "due_at": times.text(message.due_at),
        },
    )


def _cancel_retired(retired: list[int], now: datetime, slot: int, batch: int) -> int:
    queued = Delivery.objects.filter(consumer_id__in=retired, state=QUEUED)
    rows = queued.select_for_update(skip_locked=True).only(*COLUMNS)[:batch]
    cancelled_count = take_back(rows, now, slot, Reason.RETIRED)
    return cancelled_count + _end_leases(retired, now, slot, batch)


def _end_leases(retired: list[int], now: datetime, slot: int, batch: int) -> int:
    """Queue deliveries with expired leases; a late result of the holder is then ignored."""
    rows = list(
        Delivery.objects.filter(consumer_id__in=retired, state__in=TAKEN, due_at__lte=now)
        .select_for_update(skip_locked=True)
        .only(*COLUMNS, "attempt_count")[:batch]
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
                error="The worker died before it recorded a response.",
            )
            for row in open_attempts
        ]
    )
    if rows:
        transitions.apply([Move(row, TAKEN[row.state]) for row in rows], now=now, slot=slot)
    return len(rows)
