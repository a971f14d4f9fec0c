"""Change the time or the priority of a waiting message."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from channels_app import failpoints
from channels_app.access.principal import Principal
from channels_app.conf import conf
from channels_app.core import ids, times
from channels_app.core.errors import BrokerError, Conflict, Invalid, NotFound
from channels_app.core.http import ALWAYS, Precondition
from channels_app.core.rate_limits import within
from channels_app.database import raw, transactions
from channels_app.models import AuditEntry, Message
from channels_app.registry import configuration
from delivery.core.lifecycle import DeliveryState
from delivery.core.ordering import BEHIND
from delivery.models import Delivery, OrderingWaiter
from delivery.processes import wakeups

TAKEN = {DeliveryState.IN_FLIGHT.value, DeliveryState.AWAITING_ACK.value}
DELIVERIES, MESSAGES, WAITERS = (
    model._meta.db_table for model in (Delivery, Message, OrderingWaiter)
)
BATCH_SIZE = 2000
"""Approximate number of deliveries that one transaction moves."""


class _Row(NamedTuple):
    id: int
    consumer_id: int
    state: str
    due_at: datetime | None

    @property
    def is_behind(self) -> bool:
        return self.due_at == BEHIND


@dataclass(frozen=True, slots=True)
class Move:
    """The new values for one message; None leaves a value unchanged."""

    priority: int | None = None
    due_at: datetime | None = None
    """A time in the past means now."""
    condition: Precondition = ALWAYS


def reschedule(
    message_id: int,
    principal: Principal,
    *,
    now: datetime,
    priority: int | None = None,
    due_at: datetime | None = None,
    condition: Precondition = ALWAYS,
) -> Message:
    """Change the priority or the time, or both, of a message and its queued deliveries.

    ``due_at`` in the past means now; waiting retries move too. Raises NotFound and
    PreconditionFailed. Raises Conflict while a delivery is in flight, and when nothing waits any
    more. Raises Invalid for a time after the message's expiry or farther ahead than its channel
    allows, and for a priority above its producer's limit.
    """
    wanted = {message_id: Move(priority, due_at, condition)}
    (done,) = reschedule_many(wanted, principal, now=now).values()
    if isinstance(done, BrokerError):
        raise done
    return done


def reschedule_many(
    wanted: Mapping[int, Move], principal: Principal, *, now: datetime
) -> dict[int, Message | BrokerError]:
    """Reschedule many messages, by key; each succeeds or fails by itself.

    Messages with together `BATCH_SIZE` deliveries are one transaction of a few statements.
    """
    done: dict[int, Message | BrokerError] = {}
    for group in configuration.in_groups(list(wanted), BATCH_SIZE):
        moves = {key: wanted[key] for key in group}
        done |= transactions.run(partial(_reschedule, moves, principal, now))
        failpoints.reach("after_move")
    return done


def _reschedule(
    wanted: Mapping[int, Move], principal: Principal, now: datetime
) -> dict[int, Message | BrokerError]:
    # Waits for a fan-out in progress; then its deliveries exist.
    messages = configuration.messages(wanted)
    deliveries: dict[int, list[_Row]] = {key: [] for key in messages}
    rows = Delivery.objects.filter(message_id__in=messages)
    columns = ("message_id", "id", "consumer_id", "state", "due_at")
    in_order = rows.order_by("message_id", "consumer_id").select_for_update()
    for key, id, consumer_id, state, due_at in in_order.values_list(*columns):
        deliveries[key].append(_Row(id, consumer_id, state, due_at))
    done: dict[int, Message | BrokerError] = {}
    waiting: dict[int, list[_Row]] = {}
    changes: dict[int, dict[str, Any]] = {}
    entries = []
    for key, move in wanted.items():
        try:
            message = _checked(messages.get(key), move.condition)
            waiting[key] = _waiting(message, deliveries[key])
            changes[key] = _changes(message, now, move.priority, move.due_at)
        except BrokerError as refused:
            done[key] = refused
            continue
        before = _shown(message)
        for name, value in changes[key].items():
            setattr(message, name, value)
        message.version += 1
        entries += AuditEntry.entries(
            principal.actor,
            "message.reschedule",
            f"message:{ids.to_public(ids.MESSAGE, message.id)}",
            team_id=message.producer.team_id if message.producer else None,
            reason=principal.reason,
            before=before,
            after=_shown(message),
        )
        done[key] = message
    if changes:
        raw.execute_all(list(_writing(waiting, changes)))
        wakeups.notify_after_commit({row.consumer_id for key in changes for row in waiting[key]})
    AuditEntry.objects.bulk_create(entries)
    failpoints.reach("in_move")
    return done


def _checked(message: Message | None, condition: Precondition) -> Message:
    if message is None:
        raise NotFound("unknown_message", "There is no such message.")
    condition.require(message.version, "message")
    return message


def _waiting(message: Message, rows: Sequence[_Row]) -> list[_Row]:
    """Return the queued ones among a message's locked deliveries."""
    if message.state == Message.State.CANCELLED:
        raise Conflict("message_cancelled", "The message was cancelled.")
    if taken := [row.due_at for row in rows if row.state in TAKEN and row.due_at]:
        # Not even the producer can revoke a lease (S4-23).
        until = times.text(max(taken))
        raise Conflict("in_flight", f"The message is being delivered, until {until} at most.")
    waiting = [row for row in rows if row.state == DeliveryState.QUEUED.value]
    if not waiting and message.state != Message.State.ACCEPTED:
        raise Conflict("nothing_waits", "The message has no delivery that waits to be sent.")
    return waiting


def _writing(
    waiting: Mapping[int, Sequence[_Row]], changes: Mapping[int, Mapping[str, Any]]
) -> Iterator[raw.Statement]:
    """Return the statements that apply each message's changes to it and its queued deliveries.

    Without the ORM, which needs half a second for a CASE of 200 messages.
    """
    rows = [(key, row) for key, each in waiting.items() for row in each]
    if free := [row.id for _, row in rows if not row.is_behind]:
        yield _updating(DELIVERIES, "message_id", changes, free)
    if behind := {row.id: key for key, row in rows if row.is_behind}:
        # Deliveries behind an earlier one of their key keep their place; their stored due_at
        # changes.
        dues = {
            id: changes[key]["due_at"] for id, key in behind.items() if "due_at" in changes[key]
        }
        if dues:
            sets, values = _cases("due_at", "delivery_id", dues)
            yield f"UPDATE {WAITERS} SET {sets} WHERE delivery_id IN ({raw.listed(dues)})", values
        without_due_at = {key: {**each} for key, each in changes.items()}
        for each in without_due_at.values():
            each.pop("due_at", None)
        yield _updating(DELIVERIES, "message_id", without_due_at, behind)
    yield _updating(MESSAGES, "id", changes, changes)


def _updating(
    table: str, column: str, changes: Mapping[int, Mapping[str, Any]], keys: Iterable[int]
) -> raw.Statement:
    """Return an UPDATE of locked rows; ``column`` holds the id of a row's message."""
    sets, values = ["version = version + 1"], []
    for name in ("priority", "due_at"):
        those = {key: each[name] for key, each in changes.items() if name in each}
        if those:
            text, more = _cases(name, column, those)
            sets.append(text)
            values += more
    return f"UPDATE {table} SET {', '.join(sets)} WHERE id IN ({raw.listed(keys)})", values


def _cases(name: str, column: str, values: Mapping[int, Any]) -> raw.Statement:
    cases = " ".join([f"WHEN {key:d} THEN %s" for key in values])
    return f"{name} = CASE {column} {cases} ELSE {name} END", [
        raw.text(value) if isinstance(value, datetime) else value for value in values.values()
    ]


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
        if message.expires_at is not None and times.ceil_ms(due_at) >= message.expires_at:
            sentence = "The message expires before that time."
            raise Invalid("due_after_expiry", sentence, field="due_at")
        days = within(message.channel.max_future_days, conf().max_future_days)
        try:
            wanted = times.near(due_at, now, days)
            changes["due_at"] = max(times.ceil_ms(wanted), times.floor_ms(now))
        except ValueError as error:
            raise Invalid("invalid_fields", str(error), field="due_at") from None
    return changes


def _shown(message: Message) -> dict[str, object]:
    return {"priority": message.priority, "due_at": times.text(message.due_at)}
