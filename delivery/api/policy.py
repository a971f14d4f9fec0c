"""Decide which messages and deliveries a caller may see; all others are a 404.

A key sees its granted channels. On these, a team's key sees the deliveries of the team's consumers,
and the messages that the team's producers published or that its consumers were sent. A key without
a team sees what belongs to no team, and an ``admin`` key sees everything.
"""

from collections.abc import Collection

from django.db.models import Exists, OuterRef, Q

from channels_app.access.principal import Principal
from channels_app.core import ids
from channels_app.core.errors import Forbidden, NotFound
from channels_app.ingest import publication
from channels_app.models import Consumer, Message, Producer
from delivery.models import Delivery


def consumer_of(principal: Principal, channel: str, client_id: str) -> Consumer:
    """Return the consumer of the URL; a retired one too, for its history. Raises NotFound."""
    publication.channel_of(channel)
    consumer = (
        Consumer.objects.select_related("channel")
        .filter(channel__slug=channel, client_id=client_id)
        .first()
    )
    if consumer is None or not principal.owns(consumer.team_id):
        raise NotFound("unknown_consumer", f"The channel has no consumer {client_id}.")
    return consumer


def delivery_of(principal: Principal, text: str) -> Delivery:
    """Return the delivery with this public id. Raises NotFound."""
    number = ids.from_public(ids.DELIVERY, text)
    row = (
        Delivery.objects.select_related("channel", "consumer").filter(id=number).first()
        if number is not None
        else None
    )
    if (
        row is None
        or not principal.sees(row.channel.slug, row.channel.exposure)
        or not principal.owns(row.consumer.team_id)
    ):
        raise NotFound("unknown_delivery", "There is no such delivery.")
    row.consumer.channel = row.channel  # without a query
    return row


def message_of(principal: Principal, text: str) -> Message:
    """Return the message with this public id. Raises NotFound."""
    number = ids.message_number(text)
    row = (
        Message.objects.select_related("channel", "producer").filter(id=number).first()
        if number is not None
        else None
    )
    if (
        row is None
        or not principal.sees(row.channel.slug, row.channel.exposure)
        or not (is_own(principal, row) or was_sent(principal, row))
    ):
        raise NotFound("unknown_message", "There is no such message.")
    return row


def own_message(principal: Principal, text: str) -> Message:
    """Return the message with this public id for a change. Raises NotFound and Forbidden."""
    message = own_messages(principal, [text])[text]
    if isinstance(message, Exception):
        raise message
    return message


def own_messages(
    principal: Principal, texts: Collection[str]
) -> dict[str, Message | NotFound | Forbidden]:
    """Return for each public id the message to change, or the error."""
    numbers = {text: ids.message_number(text) for text in texts}
    wanted = [number for number in numbers.values() if number is not None]
    rows = Message.objects.select_related("channel", "producer").in_bulk(wanted)
    foreign = [row.id for row in rows.values() if not is_own(principal, row)]
    sent = _sent_to(principal, foreign)
    results: dict[str, Message | NotFound | Forbidden] = {}
    for text, number in numbers.items():
        row = rows.get(number) if number is not None else None
        if (
            row is None
            or not principal.sees(row.channel.slug, row.channel.exposure)
            or not (is_own(principal, row) or row.id in sent)
        ):
            results[text] = NotFound("unknown_message", "There is no such message.")
        elif may_change(principal, row):
            results[text] = row
        else:
            denied = "Only its producer may change a message."
            results[text] = Forbidden("not_the_producer", denied)
    return results


def is_received(principal: Principal, message: Message) -> bool:
    """Whether a pull consumer of the caller holds a lease on it, so that reading is delivery."""
    if not principal.may("receive"):
        return False
    held = Delivery.objects.filter(message_id=message.id, state="in_flight")
    pulled = held.filter(consumer__mode=Consumer.Mode.PULL, consumer__channel=message.channel)
    return pulled.filter(principal.owned("consumer__team_id")).exists()


def is_own(principal: Principal, message: Message) -> bool:
    """Whether the caller's team published it, and so may see each consumer's delivery."""
    return principal.owns(message.producer.team_id if message.producer else None)


def may_change(principal: Principal, message: Message) -> bool:
    """Whether the caller may cancel or move it: a producer only its own messages."""
    team_id = message.producer.team_id if message.producer else None
    return principal.may_change(message.producer_id, team_id)


def messages_on(principal: Principal, channel_id: int) -> Q:
    """Return the condition for a channel's messages that the caller may see; empty for all."""
    if principal.is_operator:
        return Q()
    published = Q(
        producer_id__in=list(
            Producer.objects.filter(Q(team_id=principal.team_id)).values_list("id", flat=True)
        )
    )
    if principal.team_id is None:
        published |= Q(producer_id=None)
    consumers = Consumer.objects.filter(Q(team_id=principal.team_id), channel_id=channel_id)
    sent = Delivery.objects.filter(
        message_id=OuterRef("pk"), consumer_id__in=list(consumers.values_list("id", flat=True))
    )
    return published | Q(Exists(sent))


def was_sent(principal: Principal, message: Message) -> bool:
    """Whether a consumer of the caller's team has a delivery of it."""
    return bool(_sent_to(principal, [message.id]))


def _sent_to(principal: Principal, message_ids: Collection[int]) -> set[int]:
    if not message_ids:
        return set()
    deliveries = Delivery.objects.filter(Q(consumer__team_id=principal.team_id))
    return set(deliveries.filter(message_id__in=message_ids).values_list("message_id", flat=True))
