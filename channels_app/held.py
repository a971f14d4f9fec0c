"""Held: what a step is about to change, locked until its transaction ends."""

from collections.abc import Collection, Iterator, Sequence

from channels_app.errors import NotFound, Stale
from channels_app.models import Consumer, Message
from channels_app.rules.conditions import ALWAYS, Condition
from channels_app.rules.tenants import OPERATOR, Tenant


def consumer(
    channel: str, client_id: str, *, tenant: Tenant = OPERATOR, condition: Condition = ALWAYS
) -> Consumer:
    """The consumer, locked, in the version that the caller knows. A removed one is none.

    Raises NotFound, for another tenant's as well, and Stale.
    """
    mine = Consumer.objects.select_for_update().filter(channel__slug=channel, client_id=client_id)
    found = mine.exclude(state=Consumer.State.RETIRED).first()
    if found is None or not tenant.owns(found.team_id):
        raise NotFound("unknown_consumer", f"The channel has no consumer {client_id}.")
    if not condition.holds(found.version):
        raise Stale("stale_version", "The consumer has changed since; read it again.")
    return found


def messages(message_ids: Collection[int]) -> dict[int, Message]:
    """The messages, locked in the order of their keys, with their channels and producers."""
    rows = Message.objects.select_for_update().filter(id__in=message_ids).order_by("id")
    return {row.id: row for row in rows.prefetch_related("channel", "producer")}


def in_groups(message_ids: Sequence[int], deliveries: int) -> Iterator[list[int]]:
    """The messages in the same order, as many at once as have so many deliveries together.

    For steps that change many: what one transaction locks and writes is bounded.
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
