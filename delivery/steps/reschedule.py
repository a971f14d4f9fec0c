"""Reschedule: change when a waiting message is sent, or how urgent it is."""

from datetime import datetime

from django.db.models import F

from channels_app import failpoints, transactions
from channels_app.conf import conf
from channels_app.errors import Conflict, Invalid, NotFound, Stale
from channels_app.models import AuditEntry, Message
from channels_app.rules import ids, times
from channels_app.rules.conditions import ALWAYS, Condition
from channels_app.rules.limits import within
from delivery.models import Delivery, LaneWaiter
from delivery.rules.asker import Asker
from delivery.rules.lanes import BEHIND
from delivery.rules.lifecycle import DeliveryState

TAKEN = {DeliveryState.IN_FLIGHT.value, DeliveryState.AWAITING_ACK.value}


def reschedule(
    message_id: int,
    asker: Asker,
    *,
    now: datetime,
    priority: int | None = None,
    due_at: datetime | None = None,
    condition: Condition = ALWAYS,
) -> Message:
    """Give a message and its queued deliveries another priority, or another instant, or both.

    ``due_at`` in the past means now; retries that wait move too. Raises NotFound; Stale; Conflict
    while a delivery is in flight, and when nothing waits any more; Invalid for an instant after
    the message's last one or farther ahead than its channel allows, and for a priority above what
    its producer may ask for.
    """
    moved = transactions.run(
        lambda: _reschedule(message_id, asker, now, priority, due_at, condition)
    )
    failpoints.reach("after_move")
    return moved


def _reschedule(
    message_id: int,
    asker: Asker,
    now: datetime,
    priority: int | None,
    due_at: datetime | None,
    condition: Condition,
) -> Message:
    # Waits for a fan-out that is being written: then its deliveries are there.
    message = Message.objects.select_for_update().filter(id=message_id).first()
    if message is None:
        raise NotFound("unknown_message", "There is no such message.")
    if not condition.holds(message.version):
        raise Stale("stale_version", "The message has changed since; read it again.")
    waiting = _waiting(message)
    changes = _changes(message, now, priority, due_at)
    before = _shown(message)
    rows = Delivery.objects.filter(id__in=waiting, state=DeliveryState.QUEUED.value)
    if due_at is not None:
        # Those behind an earlier one of their key keep their place; it is their turn that moves.
        LaneWaiter.objects.filter(delivery_id__in=waiting).update(due_at=changes["due_at"])
        behind = rows.filter(due_at=BEHIND)
        behind.update(version=F("version") + 1, **{**changes, "due_at": BEHIND})
        rows = rows.exclude(due_at=BEHIND)
    rows.update(version=F("version") + 1, **changes)
    for name, value in changes.items():
        setattr(message, name, value)
    message.version += 1
    message.save(update_fields=[*changes, "version"])
    AuditEntry.record(
        asker.actor,
        "message.reschedule",
        f"message:{ids.to_public(ids.MESSAGE, message.id)}",
        team_id=message.producer.team_id if message.producer else None,
        reason=asker.reason,
        before=before,
        after=_shown(message),
    )
    failpoints.reach("in_move")
    return message


def _waiting(message: Message) -> list[int]:
    """The queued deliveries, locked."""
    if message.state == Message.State.CANCELLED:
        raise Conflict("message_cancelled", "The message was cancelled.")
    rows = list(
        Delivery.objects.filter(message_id=message.id)
        .order_by("consumer_id")
        .select_for_update()
        .values_list("id", "state", "due_at")
    )
    if held := [due_at for _, state, due_at in rows if state in TAKEN and due_at]:
        # Not even its producer breaks a lease (S4-23).
        until = times.text(max(held))
        raise Conflict(
            "in_flight", f"The message is being delivered right now, until {until} at most."
        )
    waiting = [key for key, state, _ in rows if state == DeliveryState.QUEUED.value]
    if not waiting and message.state != Message.State.ACCEPTED:
        raise Conflict("nothing_waits", "Nothing of the message waits to be sent.")
    return waiting


def _changes(
    message: Message, now: datetime, priority: int | None, due_at: datetime | None
) -> dict[str, int | datetime]:
    changes: dict[str, int | datetime] = {}
    if priority is not None:
        highest = message.producer.max_priority if message.producer else 9
        if priority > highest:
            sentence = f"The message's producer may ask for priorities up to {highest}."
            raise Invalid("priority_too_high", sentence, field="priority")
        changes["priority"] = priority
    if due_at is not None:
        if message.expires_at is not None and due_at >= message.expires_at:
            sentence = "The message expires before that instant."
            raise Invalid("due_after_expiry", sentence, field="due_at")
        days = within(message.channel.max_future_days, conf().max_future_days)
        try:
            changes["due_at"] = max(times.near(due_at, now, days), now)
        except ValueError as error:
            raise Invalid("invalid_fields", str(error), field="due_at") from None
    return changes


def _shown(message: Message) -> dict[str, object]:
    return {"priority": message.priority, "due_at": times.text(message.due_at)}
