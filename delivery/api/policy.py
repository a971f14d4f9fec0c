"""Decide which messages and deliveries a caller may see; all others are a 404.

A key sees its granted channels. On these, a team's key sees the deliveries of the team's consumers,
and the messages that the team's producers published or that its consumers were sent. A key without
a team sees what belongs to no team, and an ``admin`` key sees everything.
"""

from collections.abc import Collection

from django.db.models import Exists, OuterRef, Q

from channels_app.access.callers import Caller
from channels_app.core import ids
from channels_app.core.errors import Forbidden, NotFound
from channels_app.models import Channel, Consumer, Message, Producer
from channels_app.registry.cache import ChannelConfig, ConsumerConfig, config_cache
from delivery.core.principal import Principal
from delivery.models import Delivery


def channel_of(slug: str) -> ChannelConfig:
    """Return the channel of the URL; HasScope has checked the grant. Raises NotFound."""
    channel = config_cache.channel(slug)
    if channel is None:
        raise NotFound("unknown_channel", f"There is no channel {slug}.")
    return channel


def consumer_of(caller: Caller, channel: str, client_id: str) -> Consumer:
    """Return the consumer of the URL; a retired one too, for its history. Raises NotFound."""
    channel_of(channel)
    consumer = (
        Consumer.objects.select_related("channel")
        .filter(channel__slug=channel, client_id=client_id)
        .first()
    )
    if consumer is None or not caller.tenant.owns(consumer.team_id):
        raise NotFound("unknown_consumer", f"The channel has no consumer {client_id}.")
    return consumer


def view_of(caller: Caller, channel: str, client_id: str) -> ConsumerConfig:
    """Return the configuration of the URL's consumer, without a query. Raises NotFound.

    A retired consumer has none.
    """
    channel_of(channel)
    view = config_cache.consumer(channel, client_id)
    if view is not None and caller.tenant.owns(view.team_id):
        return view
    raise NotFound("unknown_consumer", f"The channel has no consumer {client_id}.")


def received_by(caller: Caller, consumer_ids: Collection[int]) -> set[int]:
    """Return those of the consumers for which the caller may receive."""
    views = config_cache.consumers(consumer_ids) if consumer_ids else {}
    return {
        view.id
        for view in map(views.get, consumer_ids)
        if view and caller.tenant.owns(view.team_id) and caller.may_use(view.channel_slug)
    }


def delivery_of(caller: Caller, text: str) -> Delivery:
    """Return the delivery with this public id. Raises NotFound."""
    number = ids.from_public(ids.DELIVERY, text)
    row = (
        Delivery.objects.select_related("channel", "consumer").filter(id=number).first()
        if number is not None
        else None
    )
    if (
        row is None
        or not caller.sees(row.channel.slug, row.channel.exposure)
        or not caller.tenant.owns(row.consumer.team_id)
    ):
        raise NotFound("unknown_delivery", "There is no such delivery.")
    row.consumer.channel = row.channel  # without a query
    return row


def message_of(caller: Caller, text: str) -> Message:
    """Return the message with this public id. Raises NotFound."""
    number = ids.message_number(text)
    row = (
        Message.objects.select_related("channel", "producer").filter(id=number).first()
        if number is not None
        else None
    )
    if (
        row is None
        or not caller.sees(row.channel.slug, row.channel.exposure)
        or not (is_own(caller, row) or was_sent(caller, row))
    ):
        raise NotFound("unknown_message", "There is no such message.")
    return row


def own_message(caller: Caller, text: str) -> Message:
    """Return the message with this public id for a change. Raises NotFound and Forbidden."""
    found = own_messages(caller, [text])[text]
    if isinstance(found, Exception):
        raise found
    return found


def own_messages(
    caller: Caller, texts: Collection[str]
) -> dict[str, Message | NotFound | Forbidden]:
    """Return for each public id the message to change, or the error."""
    numbers = {text: ids.message_number(text) for text in texts}
    wanted = [number for number in numbers.values() if number is not None]
    rows = Message.objects.select_related("channel", "producer").in_bulk(wanted)
    foreign = [row.id for row in rows.values() if not is_own(caller, row)]
    sent = _sent_to(caller, foreign)
    found: dict[str, Message | NotFound | Forbidden] = {}
    for text, number in numbers.items():
        row = rows.get(number) if number is not None else None
        if (
            row is None
            or not caller.sees(row.channel.slug, row.channel.exposure)
            or not (is_own(caller, row) or row.id in sent)
        ):
            found[text] = NotFound("unknown_message", "There is no such message.")
        elif may_change(caller, row):
            found[text] = row
        else:
            denied = "Only its producer may change a message."
            found[text] = Forbidden("not_the_producer", denied)
    return found


def may_open(caller: Caller, channel: Channel) -> bool:
    """Whether the caller may read message bodies of the channel and the responses to them."""
    return not channel.sensitive or caller.may("sensitive")


def is_received(caller: Caller, message: Message) -> bool:
    """Whether a pull consumer of the caller holds a lease on it, so that reading is delivery."""
    if not caller.may("receive"):
        return False
    held = Delivery.objects.filter(message_id=message.id, state="in_flight")
    mine = held.filter(consumer__mode=Consumer.Mode.PULL, consumer__channel=message.channel)
    if not caller.tenant.everything:
        mine = mine.filter(Q(consumer__team_id=caller.tenant.team_id))
    return mine.exists()


def is_own(caller: Caller, message: Message) -> bool:
    """Whether the caller's team published it, and so may see each consumer's delivery."""
    return caller.tenant.owns(message.producer.team_id if message.producer else None)


def may_change(caller: Caller, message: Message) -> bool:
    """Whether the caller may cancel or move it: a producer only its own messages."""
    if caller.tenant.everything:
        return True
    if caller.producer is not None:
        return message.producer_id == caller.producer.id
    return is_own(caller, message)


def messages_on(caller: Caller, channel_id: int) -> Q:
    """Return the condition for a channel's messages that the caller may see; empty for all."""
    tenant = caller.tenant
    if tenant.everything:
        return Q()
    published = Q(
        producer_id__in=list(
            Producer.objects.filter(Q(team_id=tenant.team_id)).values_list("id", flat=True)
        )
    )
    if tenant.team_id is None:
        published |= Q(producer_id=None)
    consumers = Consumer.objects.filter(Q(team_id=tenant.team_id), channel_id=channel_id)
    sent = Delivery.objects.filter(
        message_id=OuterRef("pk"), consumer_id__in=list(consumers.values_list("id", flat=True))
    )
    return published | Q(Exists(sent))


def principal_of(caller: Caller, reason: str) -> Principal:
    """Return the caller for the audit log."""
    return Principal(
        actor=caller.actor,
        reason=reason,
        producer_id=caller.producer.id if caller.producer else None,
        team_id=caller.tenant.team_id,
    )


def was_sent(caller: Caller, message: Message) -> bool:
    """Whether a consumer of the caller's team has a delivery of it."""
    return bool(_sent_to(caller, [message.id]))


def _sent_to(caller: Caller, message_ids: Collection[int]) -> set[int]:
    if not message_ids:
        return set()
    mine = Delivery.objects.filter(Q(consumer__team_id=caller.tenant.team_id))
    return set(mine.filter(message_id__in=message_ids).values_list("message_id", flat=True))
