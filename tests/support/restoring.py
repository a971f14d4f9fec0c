"""Move messages from the tables to the lake, and restore them."""

from typing import Any

from django.db import transaction

from channels_app.database import clock
from channels_app.models import Consumer, Message, MessageBody
from delivery.models import Attempt, Counter, Delivery, Restore, Restored

MESSAGE_COLUMNS = (
    *("channel_id", "producer_id", "event_type", "priority", "ordering_key", "idempotency_key"),
    *("content_type", "headers", "body_bytes", "accepted_at", "due_at", "expires_at"),
    *("consumer_count", "version"),
)


def take_away(keys: list[int], *, with_bodies: bool = True) -> list[dict[str, Any]]:
    """Remove messages as the archive does; returns their archived rows."""
    rows = []
    for message in Message.objects.filter(id__in=keys).order_by("id"):
        body = MessageBody.objects.get(message_id=message.id)
        row = {name: getattr(message, name) for name in MESSAGE_COLUMNS}
        row |= {"message_id": message.id}
        row |= {"body": bytes(body.data), "body_key_id": body.key_id} if with_bodies else {}
        rows.append(row)
    for delivery in Delivery.objects.filter(message_id__in=keys):
        Counter.add({(delivery.consumer_id, delivery.state): -1}, 0)
        Counter.add({(delivery.consumer_id, "made"): -1}, 0)
    Attempt.objects.filter(delivery__message_id__in=keys).delete()
    Delivery.objects.filter(message_id__in=keys).delete()
    MessageBody.objects.filter(message_id__in=keys).delete()
    Message.objects.filter(id__in=keys)._raw_delete("default")
    return rows


@transaction.atomic
def bring(consumer: Consumer, rows: list[dict[str, Any]], **values: Any) -> Restore:
    """Stage rows in one transaction: the broker finishes a staged restore without rows."""
    row = Restore.objects.create(
        **{"state": "staged", "requested_by": "olga on the command line", "reason": "lost"}
        | {"run_id": 1, "consumer_id": consumer.id, "created_at": clock.now()}
        | {"matched_count": len(rows), "staged_count": len(rows)}
        | values
    )
    Restored.objects.bulk_create(
        Restored(restore=row, consumer_id=consumer.id, **one) for one in rows
    )
    return row


def take_away_and_bring(channel: str) -> None:
    """Remove all messages of a channel, and stage them for its only consumer."""
    consumer = Consumer.objects.get(channel__slug=channel)
    keys = Message.objects.filter(channel__slug=channel).values_list("id", flat=True)
    bring(consumer, take_away(list(keys)))
