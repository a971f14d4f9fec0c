"""List a channel's upcoming messages in the order of their time, and count them by time."""

import math
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.db.models import Q
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api import cursor
from channels_app.api.base import ApiView
from channels_app.api.cursor import CursorPage
from channels_app.core.errors import Invalid
from channels_app.database import clock
from channels_app.ingest import publication
from channels_app.models import Message
from delivery.api import documents, policy
from delivery.queue import timeline
from delivery.queue.timeline import TimelineLoad, TimelinePosition
from delivery.serializers.filters import HistogramQuerySerializer, TimelineQuerySerializer
from delivery.serializers.messages import MessageSerializer, TimelineHistogramSerializer

SCAN_ROWS = 500
"""Messages that one response scans, if the caller may not see all of them."""
MAX_OWN = 5000
"""Messages that one response counts, if the caller may not see all of them."""
FAR = timedelta(days=36_500)
TIMELINE, HISTOGRAM = TimelineQuerySerializer(), HistogramQuerySerializer()


class TimelineView(ApiView):
    """Upcoming messages of a channel."""

    scopes: ClassVar = {"GET": ("read",)}

    @documents.list_timeline
    def get(self, request: Request, channel: str) -> Response:
        """List messages that are due in the future, the next one first.

        A page may have fewer items than `limit`, even none, although `next` is set. Cancelled
        messages are omitted. Messages that are due already are in listMessages.
        """
        config = publication.channel_of(channel)
        page = cursor.read(request)
        now = clock.now()
        begin, end = _span(page.read(TIMELINE), now)
        wanted = policy.messages_on(self.principal, config.id)
        after = (
            TimelinePosition(datetime.fromisoformat(page.place[0]), page.place[1])
            if page.place
            else None
        )
        keys = timeline.ahead(
            [config.id], begin, end, SCAN_ROWS if wanted else page.limit + 1, after
        )
        shown, onward = _representation(keys, wanted, page.limit)
        serializer = MessageSerializer(context=MessageSerializer.context_for(channel, now))
        return Response(
            {
                "items": [serializer.to_representation(row) for row in shown],
                "next": _cursor(page, onward),
            }
        )


class HistogramView(ApiView):
    """Number of a channel's upcoming messages over time."""

    scopes: ClassVar = {"GET": ("read",)}

    @documents.get_histogram
    def get(self, request: Request, channel: str) -> Response:
        """Count messages that are due in the future, by time.

        Counts the next 100,000 messages. For a key that cannot see all messages, it counts those of
        the next 5,000 that the key can see. `complete` is false if there are more.
        """
        config = publication.channel_of(channel)
        page = cursor.read(request)
        values = page.read(HISTOGRAM)
        width_s = values["width_s"]
        begin, end = _span(values, clock.now(), timedelta(seconds=60 * width_s))
        if end - begin > timedelta(seconds=timeline.MAX_BUCKETS * width_s):
            least = math.ceil((end - begin) / timedelta(seconds=timeline.MAX_BUCKETS))
            detail = (
                f"That would be more than {timeline.MAX_BUCKETS} buckets: choose a width_s of "
                f"{least} or more, or a shorter span."
            )
            raise Invalid("invalid_parameter", detail, field="width_s")
        width = timedelta(seconds=width_s)
        if wanted := policy.messages_on(self.principal, config.id):
            load = _own_load(config.id, begin, end, width, wanted)
        else:
            load = timeline.load([config.id], begin, end, width)
        buckets = [
            {"from": load.begins + place * load.width, "count": count}
            for place, count in enumerate(load.counts)
        ]
        histogram = {
            "width_s": width_s,
            "buckets": buckets,
            "count": sum(load.counts),
            "complete": load.complete,
        }
        return Response(TimelineHistogramSerializer.show(histogram))


def _own_load(
    channel_id: int, begin: datetime, end: datetime, width: timedelta, wanted: Q
) -> TimelineLoad:
    """Count like timeline.load, but only messages that the caller may see."""
    keys = timeline.ahead([channel_id], begin, end, MAX_OWN, None)
    instants: list[datetime] = []
    for start in range(0, len(keys), SCAN_ROWS):
        visible_keys = [key.id for key in keys[start : start + SCAN_ROWS]]
        instants += Message.objects.filter(wanted, id__in=visible_keys).values_list(
            "due_at", flat=True
        )
    return timeline.count(instants, begin, end, width, complete=len(keys) < MAX_OWN)


def _span(
    values: dict[str, Any], now: datetime, length: timedelta = FAR
) -> tuple[datetime, datetime]:
    """Return the time range, which never begins before now."""
    begin = max(values.get("begins", now), now)
    return begin, values.get("ends", begin + length)


def _representation(
    keys: list[TimelinePosition], wanted: Q, limit: int
) -> tuple[list[Message], TimelinePosition | None]:
    """Return the messages of ``keys`` that the caller may see, and the next position."""
    rows = Message.with_open(Message.objects.filter(wanted, id__in=[key.id for key in keys]))
    messages = sorted(rows, key=lambda row: (row.due_at, row.id))
    if len(messages) > limit:
        last = messages[limit - 1]
        return messages[:limit], TimelinePosition(last.due_at, last.id)
    full = len(keys) >= (SCAN_ROWS if wanted else limit + 1)
    return messages, keys[-1] if full else None


def _cursor(page: CursorPage, onward: TimelinePosition | None) -> str | None:
    if onward is None:
        return None
    place: Any = [onward.due_at.isoformat(), onward.id]
    return page.cursor("gt", place)
