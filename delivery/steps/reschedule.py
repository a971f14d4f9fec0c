"""Reschedule: change when a waiting message is sent, or how urgent it is."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from channels_app import failpoints, stored_config, transactions
from channels_app.conf import conf
from channels_app.errors import BrokerError, Conflict, Invalid, NotFound, PreconditionFailed
from channels_app.models import AuditEntry, Message, raw
from channels_app.rules import ids, times
from channels_app.rules.limits import within
from channels_app.rules.preconditions import ALWAYS, Precondition
from delivery.models import Delivery, LaneWaiter
from delivery.rules.lanes import BEHIND
from delivery.rules.lifecycle import DeliveryState
from delivery.rules.principal import Principal

TAKEN = {DeliveryState.IN_FLIGHT.value, DeliveryState.AWAITING_ACK.value}
DELIVERIES, MESSAGES, WAITERS = (one._meta.db_table for one in (Delivery, Message, LaneWaiter))
BATCH_SIZE = 2000
"""Deliveries of many messages that are moved in one transaction, about."""


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
    """Where one message is to go; what is None stays as it is."""

    priority: int | None = None
    due_at: datetime | None = None
    """In the past it means now."""
    condition: Precondition = ALWAYS


@dataclass(frozen=True, slots=True)
class Moved:
    """A message at its new place."""

    message: Message
    consumer_ids: frozenset[int]
    """Who has it queued: their pumps may have to look earlier."""


def reschedule(
    message_id: int,
    principal: Principal,
    *,
    now: datetime,
    priority: int | None = None,
    due_at: datetime | None = None,
    condition: Precondition = ALWAYS,
) -> Message:
    """Give a message and its queued deliveries another priority, or another instant, or both.

    ``due_at`` in the past means now; retries that wait move too. Raises NotFound; Stale; Conflict
    while a delivery is in flight, and when nothing waits any more; Invalid for an instant after
    the message's last one or farther ahead than its channel allows, and for a priority above what
    its producer may ask for.
    """
    wanted = {message_id: Move(priority, due_at, condition)}
    (done,) = reschedule_many(wanted, principal, now=now).values()
    if isinstance(done, BrokerError):
        raise done
    return done.message


def reschedule_many(
    wanted: Mapping[int, Move], principal: Principal, *, now: datetime
) -> dict[int, Moved | BrokerError]:
    """The same for many, by key: each is moved or refused by itself.

    Messages with `BATCH_SIZE` deliveries together are one transaction of a few statements.
    """
    done: dict[int, Moved | BrokerError] = {}
    for group in stored_config.in_groups(list(wanted), BATCH_SIZE):
        some = {key: wanted[key] for key in group}
        done |= transactions.run(partial(_reschedule, some, principal, now))
        failpoints.reach("after_move")
    return done


def _reschedule(
    wanted: Mapping[int, Move], principal: Principal, now: datetime
) -> dict[int, Moved | BrokerError]:
    # Waits for a fan-out that is being written: then its deliveries are there.
    messages = stored_config.messages(wanted)
    deliveries: dict[int, list[_Row]] = {key: [] for key in messages}
    rows = Delivery.objects.filter(message_id__in=messages)
    columns = ("message_id", "id", "consumer_id", "state", "due_at")
    in_order = rows.order_by("message_id", "consumer_id").select_for_update()
    for key, id, consumer_id, state, due_at in in_order.values_list(*columns):
        deliveries[key].append(_Row(id, consumer_id, state, due_at))
    done: dict[int, Moved | BrokerError] = {}
    waiting: dict[int, list[_Row]] = {}
    changes: dict[int, dict[str, Any]] = {}
    entries = []
    for key, move in wanted.items():
        try:
            message = _known(messages.get(key), move.condition)
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
        done[key] = Moved(message, frozenset(row.consumer_id for row in waiting[key]))
    if changes:
        raw.execute_all(list(_writing(waiting, changes)))
    AuditEntry.objects.bulk_create(entries)
    failpoints.reach("in_move")
    return done


def _known(message: Message | None, condition: Precondition) -> Message:
    if message is None:
        raise NotFound("unknown_message", "There is no such message.")
    if not condition.holds(message.version):
        raise PreconditionFailed("stale_version", "The message has changed since; read it again.")
    return message


def _waiting(message: Message, rows: Sequence[_Row]) -> list[_Row]:
    """The queued deliveries among a message's locked ones."""
    if message.state == Message.State.CANCELLED:
        raise Conflict("message_cancelled", "The message was cancelled.")
    if taken := [row.due_at for row in rows if row.state in TAKEN and row.due_at]:
        # Not even its producer breaks a lease (S4-23).
        until = times.text(max(taken))
        raise Conflict(
            "in_flight", f"The message is being delivered right now, until {until} at most."
        )
    waiting = [row for row in rows if row.state == DeliveryState.QUEUED.value]
    if not waiting and message.state != Message.State.ACCEPTED:
        raise Conflict("nothing_waits", "Nothing of the message waits to be sent.")
    return waiting


def _writing(
    waiting: Mapping[int, Sequence[_Row]], changes: Mapping[int, Mapping[str, Any]]
) -> Iterator[raw.Statement]:
    """What gives messages and their queued deliveries what changes of each message.

    Not by the ORM: a CASE of 200 messages costs it half a second.
    """
    rows = [(key, row) for key, each in waiting.items() for row in each]
    if free := [row.id for _, row in rows if not row.is_behind]:
        yield _updating(DELIVERIES, "message_id", changes, free)
    if behind := {row.id: key for key, row in rows if row.is_behind}:
        # Those behind an earlier one of their key keep their place; it is their turn that moves.
        dues = {
            id: changes[key]["due_at"] for id, key in behind.items() if "due_at" in changes[key]
        }
        if dues:
            sets, values = _cases("due_at", "delivery_id", dues)
            yield f"UPDATE {WAITERS} SET {sets} WHERE delivery_id IN ({raw.listed(dues)})", values
        others = {key: {**each} for key, each in changes.items()}
        for each in others.values():
            each.pop("due_at", None)
        yield _updating(DELIVERIES, "message_id", others, behind)
    yield _updating(MESSAGES, "id", changes, changes)


def _updating(
    table: str, column: str, changes: Mapping[int, Mapping[str, Any]], keys: Iterable[int]
) -> raw.Statement:
    """UPDATE of locked rows; ``column`` of ``table`` says which message's changes are a row's."""
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
            sentence = "The message expires before that instant."
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
