"""Filter and list a webhook's deliveries, newest first."""

from dataclasses import dataclass

from channels_app.core import ids
from channels_app.database import keyset
from delivery.models import Delivery
from delivery.serializers.filters import (
    DeadLetterPageSerializer,
    DeliveryFilter,
    DeliveryPageSerializer,
)

LIMIT = 25
DELIVERIES, DEAD_LETTERS = DeliveryPageSerializer(), DeadLetterPageSerializer()


@dataclass(frozen=True, slots=True)
class Found:
    """One page."""

    rows: list[Delivery]
    older: str = ""
    """Public id below which the next page begins; '' at the end."""
    newer: str = ""
    """Public id above which the previous page ends; '' at the beginning."""
    is_partial: bool = False
    """The scan ended before the list did: there may be more rows although the page is not full."""


def find(
    consumer_id: int,
    wanted: DeliveryFilter,
    *,
    before: str = "",
    after: str = "",
    limit: int = LIMIT,
) -> Found:
    """Return the page below ``before`` or above ``after``, public ids; without them the newest."""
    above = ids.from_public(ids.DELIVERY, after)
    page = keyset.read(
        wanted.ranges(consumer_id),
        limit,
        below=ids.from_public(ids.DELIVERY, before) if above is None else None,
        above=above,
        condition=wanted.condition,
    )
    if above is not None and page.above is None:
        # No newer page is left: show the newest page, which is full.
        return find(consumer_id, wanted, limit=limit)
    return Found(page.rows, _public(page.below), _public(page.above), page.is_partial)


def _public(number: int | None) -> str:
    return "" if number is None else ids.to_public(ids.DELIVERY, number)
