"""Show the request of an attempt, built as the sender does, without its signature."""

from datetime import datetime

from channels_app import data_encryption
from channels_app.models import Consumer, Message
from channels_app.rules import ids
from delivery.conf import conf
from delivery.models import Delivery
from delivery.rules import envelope

NOT_KEPT = {"webhook-signature", "hookstation-attempt", "hookstation-max-attempts"}
"""Headers that cannot be restored for a past attempt: its secret and its attempt budget may have
changed."""


def headers(
    delivery: Delivery, message: Message, consumer: Consumer, at: datetime
) -> list[tuple[str, str]]:
    """Return an attempt's headers, without the consumer's own, which may be secrets."""
    built = envelope.build(
        envelope.Envelope(
            message_id=ids.to_public(ids.MESSAGE, message.id),
            timestamp=int(at.timestamp()),
            signature="",
            channel=delivery.channel.slug,
            consumer=consumer.client_id,
            priority=delivery.priority,
            attempt=1,
            max_attempts=1,
            accepted_at=delivery.accepted_at,
            user_agent=conf().user_agent,
            content_type=message.content_type,
            event_type=delivery.event_type,
            ordering_key=delivery.ordering_key,
            forwarded=data_encryption.headers_of(message),
        )
    )
    return [(name, value) for name, value in built if name.lower() not in NOT_KEPT]


def text(delivery: Delivery, message: Message, consumer: Consumer, at: datetime) -> str:
    """Return the request as text, as it was on the wire."""
    lines = [f"POST {consumer.url}"]
    lines += [f"{name}: {value}" for name, value in headers(delivery, message, consumer, at)]
    return "\n".join(lines)
