"""Check that each delivery's history has the attempts 1 to n that the delivery counts."""

from channels_app.models import raw
from channels_app.rules import ids
from delivery.models import Attempt, Delivery
from delivery.rules.lifecycle import DeliveryState
from delivery.rules.reconciliation import Check, Place, Reconciliation
from delivery.steps.reconcile.scope import KeyRange, Scope

# An open attempt is written when it ends. No number occurs twice in a history
# (one_attempt_per_number), so if as many are stored as are counted, and none lie outside, all
# exist.
OPEN = f"(d.state = '{DeliveryState.IN_FLIGHT.value}')"
OFF = f"""
    SELECT d.id, d.channel_id, d.consumer_id FROM {Delivery._meta.db_table} AS d
    WHERE d.message_id BETWEEN %s AND %s{{narrowed}} AND (
        d.attempt_count <> {OPEN} + (
            SELECT COUNT(*) FROM {Attempt._meta.db_table} AS a WHERE a.delivery_id = d.id
        ) OR EXISTS (
            SELECT 1 FROM {Attempt._meta.db_table} AS a WHERE a.delivery_id = d.id
            AND (a.number = 0 OR a.number + {OPEN} > d.attempt_count)
        )
    )
"""


def check(result: Reconciliation, scope: Scope, key_range: KeyRange) -> None:
    """Record deliveries of one range with a wrong history. Call this inside a snapshot."""
    rows = raw.read(
        OFF.format(narrowed=scope.narrowed("d")),
        [key_range.first, key_range.last],
    )
    for delivery_id, channel_id, consumer_id in rows:
        place = Place(channel_id, consumer_id)
        result.note(Check.ATTEMPTS, place, [ids.to_public(ids.DELIVERY, delivery_id)])
