"""Reading deliveries and messages in the order of their keys, a bounded stretch at a time."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Q, QuerySet

from channels_app.models import Message
from channels_app.models.hints import by_index
from delivery.models import Delivery
from delivery.steps.replay.filters import LARGEST_ID

SCAN = 2000
"""Most rows of one state that one stretch looks at; a filter that matches nothing costs no more."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """What one look found."""

    ids: list[int]
    """In rising order."""
    end: int
    """Everything up to this key has been looked at."""
    done: bool
    """There is nothing more up to the upper end."""


def deliveries(
    consumer_id: int, states: Sequence[str], wanted: Q, *, after: int, upper: int, limit: int
) -> KeyRange:
    """Up to ``limit`` deliveries of a consumer with keys in (after, upper].

    One range of the index (consumer, state, id) per state, merged: a sort over several states is
    none that the index serves.
    """
    end = min(boundary(consumer_id, state, after, upper, SCAN) for state in states)
    rows = _of(consumer_id).filter(wanted, id__gt=after, id__lte=end)
    ranges = [
        list(rows.filter(state=state).order_by("id").values_list("id", flat=True)[: limit + 1])
        for state in states
    ]
    return _cut(list(heapq.merge(*ranges)), end, upper, limit)


def messages(channel_id: int, wanted: Q, *, after: int, upper: int, limit: int) -> KeyRange:
    """Up to ``limit`` messages of a channel with keys in (after, upper]."""
    rows = Message.objects.filter(channel_id=channel_id, id__gt=after, id__lte=upper)
    rows = by_index(rows, "message_channel")
    ids = rows.order_by("id").values_list("id", flat=True)
    end = next(iter(ids[SCAN : SCAN + 1]), upper)
    found = ids.filter(wanted, id__lte=end)[: limit + 1]
    return _cut(list(found), end, upper, limit)


def boundary(consumer_id: int, state: str, after: int, upper: int, scan: int) -> int:
    """The key ``scan`` rows after ``after``, or ``upper``: read from the index alone."""
    ids = (
        _of(consumer_id)
        .filter(state=state, id__gt=after, id__lte=min(upper, LARGEST_ID))
        .order_by("id")
        .values_list("id", flat=True)
    )
    return next(iter(ids[scan : scan + 1]), upper)


def _of(consumer_id: int) -> QuerySet[Delivery]:
    return by_index(Delivery.objects.filter(consumer_id=consumer_id), "delivery_list")


def _cut(found: list[int], end: int, upper: int, limit: int) -> KeyRange:
    if len(found) > limit:
        found = found[:limit]
        return KeyRange(found, found[-1] if found else 0, False)
    return KeyRange(found, end, end >= upper)
