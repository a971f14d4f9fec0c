"""Lock configured rows that are about to change."""

from collections.abc import Collection, Iterator, Sequence

from channels_app.access.principal import Principal
from channels_app.core.errors import NotFound
from channels_app.core.http import Precondition
from channels_app.models import Channel, Consumer, Message


def consumer(
    channel: str, client_id: str, principal: Principal, condition: Precondition
) -> Consumer:
    """The consumer, locked, in the version that the caller expects.

    Raises NotFound if it does not exist, is retired or belongs to another tenant, and
    PreconditionFailed.
    """
    rows = Consumer.objects.select_for_update().filter(channel__slug=channel, client_id=client_id)
    row = rows.exclude(state=Consumer.State.RETIRED).first()
    if row is None or not principal.owns(row.team_id):
        raise NotFound("unknown_consumer", f"The channel has no consumer {client_id}.")
    condition.require(row.version, "consumer")
    return row


def consumers(names: Collection[tuple[str, str]]) -> dict[tuple[str, str], Consumer]:
    """The consumers with these channel names and client ids, locked in the order of their keys.

    Retired ones are left out.
    """
    slugs = {channel for channel, _ in names}
    channels = dict(Channel.objects.filter(slug__in=slugs).values_list("id", "slug"))
    rows = Consumer.objects.select_for_update().filter(
        channel_id__in=channels, client_id__in={client_id for _, client_id in names}
    )
    live = rows.exclude(state=Consumer.State.RETIRED).order_by("id")
    return {(channels[row.channel_id], row.client_id): row for row in live}


def messages(message_ids: Collection[int]) -> dict[int, Message]:
    """The messages, locked in the order of their keys, with their channels and producers."""
    rows = Message.objects.select_for_update().filter(id__in=message_ids).order_by("id")
    return {row.id: row for row in rows.prefetch_related("channel", "producer")}


def in_groups(message_ids: Sequence[int], deliveries: int) -> Iterator[list[int]]:
    """Split the messages, in order, into groups with at most ``deliveries`` deliveries in total.

    For steps that change many messages: this bounds what one transaction locks and writes.
    """
    rows = Message.objects.filter(id__in=message_ids)
    weights = dict(rows.values_list("id", "consumer_count"))
    group: list[int] = []
    weight = 0
    for key in message_ids:
        own = 1 + weights.get(key, 0)
        if group and weight + own > deliveries:
            yield group
            group, weight = [], 0
        group.append(key)
        weight += own
    if group:
        yield group
