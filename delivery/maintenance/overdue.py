"""Find messages, leases and deliveries that have waited for too long, without changing anything."""

from collections.abc import Collection, Iterator
from datetime import datetime

from channels_app.core import ids
from channels_app.database import raw
from channels_app.database.raw import dialect
from channels_app.models import Message
from delivery.core.lifecycle import DeliveryState
from delivery.core.reconciliation import Check, MismatchPlace, Reconciliation
from delivery.maintenance.reconciliation_scope import Scope
from delivery.models import ConsumerHealth, Delivery

MAX_ROWS = 1000
"""Most rows reported at once: without running pumps there may be millions."""
CONSUMERS = 200
"""Consumers in one statement."""
TAKEN = f"('{DeliveryState.IN_FLIGHT.value}', '{DeliveryState.AWAITING_ACK.value}')"
_UNSENDABLE = "2000-01-01"
"""Finished rows have no ``due_at``: without a lower bound the index would read all of them."""
ACCEPTED = f"""
    SELECT id, channel_id FROM {Message._meta.db_table} AS m{dialect.forced("message_state")}
    WHERE state = '{Message.State.ACCEPTED.value}' AND id BETWEEN %s AND %s
    AND accepted_at < %s{{narrowed}} ORDER BY id LIMIT %s
"""
LEASES = f"""
    SELECT id, channel_id, consumer_id
    FROM {Delivery._meta.db_table}{dialect.forced("delivery_list")}
    WHERE consumer_id IN ({{consumers}}) AND state IN {TAKEN}
    AND (due_at < %s OR state = '{DeliveryState.IN_FLIGHT.value}' AND due_at > %s) LIMIT %s
"""
DUE = f"""
    SELECT id FROM {Delivery._meta.db_table}{dialect.forced("delivery_claim")}
    WHERE consumer_id = %s AND priority IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    AND due_at > '{_UNSENDABLE}' AND due_at <= %s LIMIT %s
"""


def messages(result: Reconciliation, scope: Scope) -> None:
    """Record messages that are not fanned out."""
    rows = raw.read(
        ACCEPTED.format(narrowed=scope.narrowed("m", to_consumers=False)),
        [scope.first, scope.last, raw.text(scope.before), MAX_ROWS],
    )
    for message_id, channel_id in rows:
        name = ids.to_public(ids.MESSAGE, message_id)
        result.note(Check.UNDISPATCHED, MismatchPlace(channel_id), [name])


def leases(
    result: Reconciliation, consumer_ids: Collection[int], *, before: datetime, latest: datetime
) -> None:
    """Record leases that ended ``before``, or end after ``latest``."""
    for group in _groups(consumer_ids):
        rows = raw.read(
            LEASES.format(consumers=raw.listed(group)),
            [raw.text(before), raw.text(latest), MAX_ROWS],
        )
        for delivery_id, channel_id, consumer_id in rows:
            name = ids.to_public(ids.DELIVERY, delivery_id)
            result.note(Check.LEASES, MismatchPlace(channel_id, consumer_id), [name])


def deliveries(result: Reconciliation, place: MismatchPlace, before: datetime) -> None:
    """Record deliveries that have been due since before this time."""
    rows = raw.read(DUE, [place.consumer_id, raw.text(before), MAX_ROWS])
    result.note(Check.LATE, place, (ids.to_public(ids.DELIVERY, row[0]) for row in rows))


def unblocked(consumer_ids: Collection[int], now: datetime) -> list[int]:
    """Return consumers that neither their circuit nor a requested pause holds back."""
    rows = ConsumerHealth.objects.filter(consumer_id__in=list(consumer_ids))
    held = {
        row.consumer_id
        for row in rows
        if row.circuit != ConsumerHealth.Circuit.CLOSED or (row.slow_until or now) > now
    }
    return [consumer_id for consumer_id in consumer_ids if consumer_id not in held]


def _groups(consumer_ids: Collection[int]) -> Iterator[list[int]]:
    everyone = sorted(consumer_ids)
    for start in range(0, len(everyone), CONSUMERS):
        yield everyone[start : start + CONSUMERS]
