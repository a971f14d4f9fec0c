"""Read deliveries and messages in the order of their keys, a bounded range at a time."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Q, QuerySet

from channels_app.models import Message
from channels_app.models.hints import by_index
from delivery.models import Delivery
from delivery.steps.replay.filters import LARGEST_ID

SCAN = 2000
"""Most rows of one state that one range reads, even if a filter matches nothing."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The result of one read."""

    ids: list[int]
    """Ids in ascending order."""
    end: int
    """Key up to which everything was read."""
    done: bool
    """Whether nothing is left up to the upper end."""


def deliveries(
    consumer_id: int, states: Sequence[str], wanted: Q, *, after: int, upper: int, limit: int
) -> KeyRange:
    """Read up to ``limit`` deliveries of a consumer with keys in (after, upper].

    Merges one range of the index (consumer, state, id) per state: the index cannot serve a sort
    over several states.
    """
    end = min(boundary(consumer_id, state, after, upper, SCAN) for state in states)
    rows = _of(consumer_id).filter(wanted, id__gt=after, id__lte=end)
    ranges = [
        list(rows.filter(state=state).order_by("id").values_list("id", flat=True)[: limit + 1])
        for state in states
    ]
    return _cut(list(heapq.merge(*ranges)), end, upper, limit)


def messages(channel_id: int, wanted: Q, *, after: int, upper: int, limit: int) -> KeyRange:
    """Read up to ``limit`` messages of a channel with keys in (after, upper]."""
    rows = Message.objects.filter(channel_id=channel_id, id__gt=after, id__lte=upper)
    rows = by_index(rows, "message_channel")
    ids = rows.order_by("id").values_list("id", flat=True)
    end = next(iter(ids[SCAN : SCAN + 1]), upper)
    found = ids.filter(wanted, id__lte=end)[: limit + 1]
    return _cut(list(found), end, upper, limit)


def boundary(consumer_id: int, state: str, after: int, upper: int, scan: int) -> int:
    """Return the key ``scan`` rows after ``after``, or ``upper``; reads only the index."""
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
