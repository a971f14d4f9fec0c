"""Dispatch: make a delivery for every consumer that wants a message, all or none (S0-32)."""

from collections import Counter as Tally
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import QuerySet

from channels_app import transactions
from channels_app.directory import ChannelView, directory
from channels_app.models import Message, new_id
from delivery.models import Counter, Delivery
from delivery.models.counter import MADE
from delivery.rules.lifecycle import DeliveryState, Reason

MOST_ROWS = 10_000
"""Deliveries that one transaction makes, unless a single message has more consumers."""
INSERT_ROWS = 1000
"""Of one statement: servers refuse statements above ``max_allowed_packet``."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """What one batch of fan-out made."""

    message_count: int = 0
    more: bool = False
    """Whether others may be waiting."""
    oldest_accepted_at: datetime | None = None
    due: dict[int, datetime] = field(default_factory=dict)
    """Earliest instant at which each consumer has something new to send."""


def dispatch(limit: int, slot: int) -> Dispatched:
    """Fan out up to ``limit`` accepted messages, oldest first.

    Safe to run anywhere at once: messages that another worker is fanning out are skipped, and a
    message that was fanned out is no longer in the state that this looks for.
    """
    return _run(Message.objects.filter(state=Message.State.ACCEPTED), limit, slot)


def dispatch_late(limit: int, slot: int, *, accepted_before: datetime) -> Dispatched:
    """The same for messages that nobody took in time (S0-33)."""
    late = Message.objects.filter(state=Message.State.ACCEPTED, accepted_at__lt=accepted_before)
    return _run(late, limit, slot)


def _run(waiting: QuerySet[Message], limit: int, slot: int) -> Dispatched:
    # A look without a lock: an idle broker opens no transaction to find nothing.
    if not waiting.exists():
        return Dispatched()
    return transactions.run(lambda: _dispatch(waiting, limit, slot), on_collision=new_id.reseed)


def _dispatch(waiting: QuerySet[Message], limit: int, slot: int) -> Dispatched:
    messages = list(waiting.order_by("id").select_for_update(skip_locked=True)[:limit])
    if not messages:
        return Dispatched()
    # Asked after the messages were locked: whoever registered before one of them was accepted
    # is in the answer, and a half-read list of consumers cannot exist.
    directory.refresh(now=True)
    channels = {view.id: view for view in directory.channels()}
    found, deliveries = len(messages), list[Delivery]()
    for place, message in enumerate(messages):
        made = _deliveries(message, channels)
        if place and len(deliveries) + len(made) > MOST_ROWS:
            messages = messages[:place]
            break
        deliveries += made
    Delivery.objects.bulk_create(deliveries, batch_size=INSERT_ROWS)
    _mark(messages, deliveries)
    tally: Tally[tuple[int, str]] = Tally()
    due: dict[int, datetime] = {}
    for delivery in deliveries:
        assert delivery.due_at is not None
        consumer_id = delivery.consumer_id
        tally[consumer_id, delivery.state] += 1
        tally[consumer_id, MADE] += 1
        due[consumer_id] = min(due.get(consumer_id, delivery.due_at), delivery.due_at)
    Counter.add(tally, slot)
    more = found == limit or len(messages) < found
    return Dispatched(len(messages), more, messages[0].accepted_at, due)


def _deliveries(message: Message, channels: dict[int, ChannelView]) -> list[Delivery]:
    channel = channels.get(message.channel_id)
    consumers = channel.consumers if channel else ()
    return [
        Delivery(
            id=new_id(),
            message_id=message.id,
            consumer_id=consumer.id,
            channel_id=message.channel_id,
            state=DeliveryState.QUEUED.value,
            reason=Reason.ACCEPTED.value,
            priority=message.priority,
            due_at=message.due_at,
            expires_at=message.expires_at,
            event_type=message.event_type,
            ordering_key=message.ordering_key,
            accepted_at=message.accepted_at,
        )
        for consumer in consumers
        if consumer.wants(message.event_type)
    ]


def _mark(messages: list[Message], deliveries: list[Delivery]) -> None:
    fan_out = Tally(delivery.message_id for delivery in deliveries)
    by_count: dict[int, list[int]] = {}
    for message in messages:
        by_count.setdefault(fan_out[message.id], []).append(message.id)
    for count, ids in by_count.items():
        Message.objects.filter(id__in=ids).update(
            state=Message.State.DISPATCHED, consumer_count=count
        )
