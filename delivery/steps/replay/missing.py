"""Create deliveries of past messages for a consumer that has none of them (backfill)."""

from collections import Counter as Tally

from django.db.models import Exists, F, OuterRef, Q

from channels_app.models import Channel, Consumer, Message, new_id
from delivery import lanes
from delivery.models import Counter, Delivery
from delivery.models.counter import MADE
from delivery.rules.lifecycle import DeliveryState, Reason
from delivery.steps.replay.requeue import Pace


def unknown_to(consumer: Consumer) -> Q:
    """Return the condition for messages that this consumer has not been given.

    On a queue: messages that no consumer has been given. Deliveries that still waited when their
    consumer was retired do not count.
    """
    had = Delivery.objects.filter(message_id=OuterRef("pk"))
    if consumer.channel.kind != Channel.Kind.QUEUE:
        return Q(~Exists(had.filter(consumer_id=consumer.id)))
    lost = Q(state=DeliveryState.CANCELLED.value, reason=Reason.RETIRED.value)
    return Q(~Exists(had.exclude(lost & ~Q(consumer_id=consumer.id))))


def make(
    message_ids: list[int],
    consumer: Consumer,
    wanted: Q,
    *,
    pace: Pace,
    first_place: int,
    slot: int,
) -> int:
    """Create queued deliveries of these messages; return how many.

    Runs inside the caller's transaction. If a fan-out creates one of them first, the unique key
    causes a rollback: the caller runs it again, and then finds that row.
    """
    # Locked and checked again: a concurrent cancellation now waits, or came first.
    messages = list(
        Message.objects.filter(wanted & unknown_to(consumer), id__in=message_ids)
        .order_by("id")
        .select_for_update()
    )
    made = [
        _delivery(message, consumer, pace, first_place + place)
        for place, message in enumerate(messages)
    ]
    Delivery.objects.bulk_create(made)
    Message.objects.filter(id__in=[message.id for message in messages]).update(
        consumer_count=F("consumer_count") + 1
    )
    tally: Tally[tuple[int, str]] = Tally()
    tally[consumer.id, DeliveryState.QUEUED.value] += len(made)
    tally[consumer.id, MADE] += len(made)
    Counter.add(tally, slot)
    lanes.enter_rows([row.id for row in made])
    return len(made)


def _delivery(message: Message, consumer: Consumer, pace: Pace, place: int) -> Delivery:
    return Delivery(
        id=new_id(),
        message_id=message.id,
        consumer_id=consumer.id,
        channel_id=message.channel_id,
        state=DeliveryState.QUEUED.value,
        reason=Reason.ACCEPTED.value,
        priority=message.priority,
        due_at=max(message.due_at, pace.at(place)),
        expires_at=message.expires_at,
        event_type=message.event_type,
        ordering_key=message.ordering_key,
        accepted_at=message.accepted_at,
    )
