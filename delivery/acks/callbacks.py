"""Process the acknowledgements that consumers send (S3-38)."""

import base64
import hmac
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Exists, OuterRef

from channels_app import failpoints
from channels_app.core import ids
from channels_app.core.errors import NotFound
from channels_app.database import transactions
from channels_app.registry import data_encryption
from delivery import metrics, transitions
from delivery.acks import decisions
from delivery.core.acks import AckResult, ack_result, confirmed
from delivery.core.lifecycle import DeliveryState, Reason
from delivery.models import Delivery, PendingAck
from delivery.processes import wakeups
from delivery.transitions import Move

PURPOSE = b"acknowledgement addresses"
"""Purpose of the key that signs tokens."""
RETENTION = timedelta(hours=1)
"""How long an acknowledgement without a matching attempt is kept."""


class Answered(NamedTuple):
    """The effect of an acknowledgement."""

    result: AckResult
    delivery: Delivery


def token(delivery_id: int) -> str:
    """Return the token for one delivery in the URL that its consumer may call.

    Raises core.encryption.KeyMissing.
    """
    name = ids.to_public(ids.DELIVERY, delivery_id)
    return f"{name}.{_signature(name, data_encryption.signing_key(PURPOSE))}"


def opened(text: str) -> int:
    """Return the delivery of a token. Raises NotFound for a token with an invalid signature."""
    name, _, given = text.partition(".")
    keys, signature = data_encryption.signing_keys(PURPOSE), given.encode("utf-8", "replace")
    if any(hmac.compare_digest(signature, _signature(name, key).encode()) for key in keys):
        number = ids.from_public(ids.DELIVERY, name)
        if number is not None:
            return number
    raise _foreign()


def acknowledge(delivery_id: int, *, ok: bool, now: datetime, slot: int = 0) -> Answered:
    """Process an acknowledgement. Raises NotFound for a delivery that was deleted meanwhile."""
    answered = transactions.run(lambda: _write(delivery_id, ok, now, slot))
    if answered is None:
        raise _foreign()
    metrics.ACKS.labels(answered.result.value).inc()
    failpoints.reach("after_ack")
    return answered


def extend_wait(delivery_id: int, *, now: datetime) -> Answered:
    """Restart the wait for an acknowledgement because the consumer is at work (S4-26).

    The wait begins with the response to the broker's request; before that nothing can be extended.
    Raises NotFound.
    """
    answered = transactions.run(lambda: _extend_wait(delivery_id, now))
    if answered is None:
        raise _foreign()
    failpoints.reach("after_ack")
    return answered


def forget(now: datetime) -> int:
    """Delete early acknowledgements without a matching attempt; return how many."""
    old = PendingAck.objects.filter(said_at__lt=now - RETENTION)
    # Keep those of open attempts, which stay open while no pump runs: they decide the result.
    held = Delivery.objects.filter(id=OuterRef("pk"), state=DeliveryState.IN_FLIGHT.value)
    return old.exclude(Exists(held)).delete()[0]


def _signature(name: str, key: bytes) -> str:
    mac = hmac.digest(key, name.encode("utf-8", "replace"), "sha256")
    return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def _foreign() -> NotFound:
    metrics.ACKS.labels("foreign").inc()
    return NotFound("unknown_token", "No delivery waits for an acknowledgement with this token.")


def _write(number: int, ok: bool, now: datetime, slot: int) -> Answered | None:
    row = Delivery.objects.select_for_update().filter(id=number).first()
    if row is None:
        return None
    result = ack_result(DeliveryState(row.state), Reason(row.reason), ok=ok)
    if result is AckResult.EARLY:
        _, is_new = PendingAck.objects.get_or_create(
            delivery_id=row.id, defaults={"ok": ok, "said_at": now}
        )
        result = result if is_new else AckResult.DOUBLE
    elif result is AckResult.ON_TIME:
        to = (
            confirmed()
            if ok
            else decisions.refused(row.consumer_id, row.failure_count, row.event_type)
        )
        due = transitions.apply([Move(row, to)], now=now, slot=slot, wakes=False)
        # Whenever that is: the pump looks once, and learns the time.
        retried = () if to.due_in is None else (row.consumer_id,)
        wakeups.notify_after_commit({*due, *retried})
        row.refresh_from_db()
    failpoints.reach("in_ack")
    return Answered(result, row)


def _extend_wait(number: int, now: datetime) -> Answered | None:
    row = Delivery.objects.select_for_update().filter(id=number).first()
    if row is None:
        return None
    result = ack_result(DeliveryState(row.state), Reason(row.reason), ok=False)
    if result is AckResult.ON_TIME:
        row.due_at = max(row.due_at or now, now + decisions.wait_of(row.consumer_id))
        row.version += 1
        row.save(update_fields=["due_at", "version"])
    failpoints.reach("in_ack")
    return Answered(result, row)
