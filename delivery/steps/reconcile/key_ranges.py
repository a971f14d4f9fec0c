"""Cut the keys of messages into ranges that one short query can read."""

from channels_app.models import Message, raw
from delivery.models import Delivery
from delivery.steps.reconcile.scope import KeyRange, Scope

SLICE = 2000
"""Messages, and deliveries, that one query reads."""
MESSAGES = f"""
    SELECT MIN(id), MAX(id), COUNT(*) FROM (
        SELECT id FROM {Message._meta.db_table} WHERE id BETWEEN %s AND %s ORDER BY id LIMIT %s
    ) AS slice
"""
DELIVERIES = f"""
    SELECT MIN(id), MAX(id), COUNT(*) FROM (
        SELECT message_id AS id FROM {Delivery._meta.db_table}
        WHERE message_id BETWEEN %s AND %s ORDER BY message_id LIMIT %s
    ) AS slice
"""
"""Read separately: a message may have thousands of them, and they may exist without it."""

NEWEST = f"""
    SELECT COALESCE((SELECT MAX(id) FROM {Message._meta.db_table}), 0),
        COALESCE((SELECT MAX(message_id) FROM {Delivery._meta.db_table}), 0)
"""


def newest() -> int:
    """Return the highest existing key: later rows are left to the next reconciliation."""
    message_id, owner_id = raw.read(NEWEST)[0]
    return max(int(message_id), int(owner_id))


def next_one(scope: Scope, first: int) -> KeyRange:
    """Return the range that begins at ``first``: up to SLICE messages and SLICE deliveries.

    A message with more deliveries than that is a range by itself.
    """
    _, last_message, messages = raw.read(MESSAGES, [first, scope.last, SLICE])[0]
    first_owner, last_owner, deliveries = raw.read(DELIVERIES, [first, scope.last, SLICE])[0]
    last = scope.last
    if messages == SLICE:
        last = last_message
    if deliveries == SLICE:
        # The last message may have more deliveries than were read.
        whole = last_owner if first_owner == last_owner else last_owner - 1
        last = min(last, whole)
    return KeyRange(first, last)
