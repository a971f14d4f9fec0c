"""Describe an ordering key of a consumer."""

from typing import Self

from channels_app.core import ids
from channels_app.serializers.base import ResponseSerializer
from channels_app.serializers.fields import Instant, Listed, OneOf, Text, Whole
from delivery.models import OrderingKey
from delivery.serializers.base import AddressField, PublicId
from delivery.serializers.deliveries import Thousandths


def _path(row: OrderingKey) -> str:
    consumer = f"channels/{row.consumer.channel.slug}/consumers/{row.consumer.client_id}"
    return f"{consumer}/ordering-keys/{ids.to_public(ids.ORDERING_KEY, row.id)}"


class OrderingKeySerializer(ResponseSerializer):
    """An ordering key; the context has its ``most_per_second``."""

    id = PublicId(ids.ORDERING_KEY, help_text="Identifies consumer and key.")
    channel = Text(source="consumer.channel.slug")
    consumer = Text(source="consumer.client_id", help_text="The consumer's client id.")
    ordering_key = Text()
    state = OneOf(OrderingKey.STATES, help_text="blocked: a dead head holds the others back.")
    head = PublicId(
        ids.DELIVERY,
        source="head_id",
        allow_null=True,
        help_text="The delivery that may be sent; null if none may.",
    )
    head_at = Instant(help_text="When it became the head.")
    waiting_count = Whole(help_text="Deliveries behind the head.")
    most_per_second = Thousandths(
        from_context=True,
        allow_null=True,
        help_text="Estimated maximum messages of one key per second, from the consumer's latest "
        "deliveries: about 1 / response time. Null before the first one.",
    )
    paused_at = Instant(allow_null=True)
    blocked_at = Instant(allow_null=True)
    url = AddressField(_path, help_text="The ordering key.")

    @classmethod
    def at_rate(cls, most_per_second: float | None) -> Self:
        """For keys of one consumer."""
        return cls(context={"most_per_second": lambda _: most_per_second})


class OrderingKeysSerializer(ResponseSerializer):
    """Ordering keys of a consumer."""

    items = Listed(OrderingKeySerializer())
