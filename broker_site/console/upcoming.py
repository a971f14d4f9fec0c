"""Show the console's page of upcoming messages, as a chart and as a list."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest

from channels_app.admin import pages
from channels_app.conf import conf
from channels_app.core import times
from channels_app.database import clock
from channels_app.models import Channel, Message
from delivery.queue import timeline
from delivery.queue.timeline import TimelineLoad, TimelinePosition

MAY_MOVE = "channels_app.change_message"
SPANS = {
    "hour": (timedelta(hours=1), timedelta(minutes=1), "a minute"),
    "day": (timedelta(days=1), timedelta(minutes=20), "20 minutes"),
    "week": (timedelta(days=7), timedelta(hours=2), "2 hours"),
    "year": (timedelta(days=366), timedelta(days=6), "6 days"),
}
"""Length of the chart, and width of a bar as a time and as text."""
SHOWN = 50
"""Messages per page."""
MAX_CHANNELS = 200
"""Channels shown together; if there are more, the others must be chosen one at a time."""
FAR = timedelta(days=36_500)
HEIGHT = 100.0


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """One interval of the chart."""

    begins: datetime
    count: int
    x: float
    height: float

    @property
    def y(self) -> float:
        """Its upper edge."""
        return HEIGHT - self.height


@pages.page("timeline", permission="channels_app.view_message", template="admin/timeline.html")
def context(request: HttpRequest) -> dict[str, Any]:
    """Scheduled messages as a chart and as a list."""
    now = clock.now()
    channels = list(Channel.objects.order_by("slug"))
    chosen = request.GET.get("channel", "")
    channel = next((candidate for candidate in channels if chosen == str(candidate.pk)), None)
    looked = [channel.pk] if channel else [candidate.pk for candidate in channels[:MAX_CHANNELS]]
    span = request.GET.get("span", "")
    span = span if span in SPANS else "day"
    length, width, words = SPANS[span]
    load = timeline.load(looked, now, now + length, width) if looked else None
    places = timeline.ahead(looked, now, now + FAR, SHOWN + 1, _after(request))
    rows = Message.objects.select_related("channel", "producer")
    by_id = rows.in_bulk([place.id for place in places[:SHOWN]])
    return {
        "title": "Timeline",
        "channels": channels,
        "channel": channel,
        "span": span,
        "spans": SPANS,
        "width": words,
        "bars": bars(load) if load else [],
        "load": load,
        "total": sum(load.counts) if load else 0,
        "most": max(load.counts, default=0) if load else 0,
        "ends": now + length,
        "messages_ahead": [by_id[place.id] for place in places[:SHOWN] if place.id in by_id],
        "next": _address(channel, span, places[SHOWN - 1]) if len(places) > SHOWN else "",
        "here": _address(channel, span, None),
        "is_later": "after" in request.GET,
        "left_out": max(0, len(channels) - MAX_CHANNELS) if channel is None else 0,
        "public_url": conf().public_url,
        "may_move": request.user.has_perm(MAY_MOVE),
    }


def bars(load: TimelineLoad) -> list[TimelineBar]:
    """The bars, scaled so that the largest fills the height of the chart."""
    top, step = max(load.counts, default=0) or 1, 600 / max(1, len(load.counts))
    return [
        # A minimum height keeps small counts visible.
        TimelineBar(load.begins + place * load.width, count, place * step, _height(count, top))
        for place, count in enumerate(load.counts)
    ]


def _height(count: int, top: int) -> float:
    return max(2.0, HEIGHT * count / top) if count else 0.0


def _after(request: HttpRequest) -> TimelinePosition | None:
    """The position at which the previous page ended."""
    instant, _, number = request.GET.get("after", "").partition("~")
    try:
        return TimelinePosition(times.instant(instant), int(number))
    except ValueError:
        return None


def _address(channel: Channel | None, span: str, after: TimelinePosition | None) -> str:
    asked: dict[str, object] = {"span": span}
    if channel:
        asked["channel"] = channel.pk
    if after:
        asked["after"] = f"{_exact(after.due_at)}~{after.id}"
    return f"?{urlencode(asked)}"


def _exact(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")
