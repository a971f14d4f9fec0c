"""Show the forecast in the console: load by the hour, hot frames, and the pumps needed."""

from dataclasses import dataclass
from datetime import date
from itertools import groupby
from typing import Any

from django.contrib import admin
from django.db.models import Sum
from django.http import HttpRequest

from channels_app.admin import base, pages
from channels_app.admin.base import display
from channels_app.models import Channel
from delivery.models import ForecastFrame, PipelineRun
from delivery.models.reports import ALL, HOUR_S, MINUTE_S

DAYS = 14
"""Days on the chart; the list has all of them."""
SHOWN = 20
"""Maximum hot frames and channels on the page."""
RUNS = 200
"""Runs searched for the error of a forecast: those of a week, one each hour."""
HEATS = 6
"""Shades of the chart, the first for no load."""


@dataclass(frozen=True, slots=True)
class Cell:
    """An hour of the chart."""

    frame: ForecastFrame | None
    """None before the forecast begins, and after its end."""
    heat: int


@dataclass(frozen=True, slots=True)
class Day:
    """A row of the chart."""

    day: date
    cells: list[Cell]


@dataclass(frozen=True, slots=True)
class Part:
    """A channel's share."""

    channel: Channel
    messages: float
    deliveries: float
    length: float
    """Length of its bar; the busiest channel has 100."""


@admin.register(ForecastFrame)
class ForecastFrameAdmin(base.ReadOnly):
    """All frames of the last forecast."""

    list_display = (
        *("begins", "span_s", "whose", "expected", "range_", "sent", "workers", "is_hot"),
    )
    ordering = ("channel_id", "span_s", "begins_at")
    sortable_by = ()
    show_full_result_count = False
    search_fields = ("channel_id",)
    search_help_text = "number of the channel; 0 is all together"
    fields = (
        ("begins", "span_s"),
        ("whose", "basis"),
        ("messages", "deliveries"),
        ("low", "high"),
        ("scheduled", "retries"),
        ("bytes", "samples"),
        ("per_second", "workers"),
        "is_hot",
    )
    readonly_fields = ("begins", "whose")

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """Find the frames of one channel."""
        term = search_term.strip()
        if not term:
            return queryset, False
        return (queryset.filter(channel_id=term) if term.isdecimal() else queryset.none()), False

    @display(description="Beginning")
    def begins(self, frame: ForecastFrame) -> str:
        """When it begins."""
        return base.instant(frame.begins_at, exact=False)

    @display(description="Channel")
    def whose(self, frame: ForecastFrame) -> str:
        """Its channel, or all channels."""
        return "all" if frame.channel_id == ALL else str(frame.channel_id)

    @display(description="Messages")
    def expected(self, frame: ForecastFrame) -> str:
        """Expected messages."""
        return f"{frame.messages:,.0f}"

    @display(description="In past weeks")
    def range_(self, frame: ForecastFrame) -> str:
        """Messages of the lowest and highest sample."""
        return f"{frame.low:,.0f} to {frame.high:,.0f}"

    @display(description="Deliveries")
    def sent(self, frame: ForecastFrame) -> str:
        """Expected deliveries."""
        return f"{frame.deliveries:,.0f}"


@pages.page("forecast", permission="delivery.view_forecastframe", template="delivery/forecast.html")
def context(request: HttpRequest) -> dict[str, Any]:
    """Show the chart of all channels, or of one."""
    chosen = request.GET.get("channel", "")
    channel = Channel.objects.filter(pk=chosen).first() if chosen.isdecimal() else None
    owner = channel.pk if channel else ALL
    frames = ForecastFrame.objects.filter(channel_id=owner).order_by("begins_at")
    hours = list(frames.filter(span_s=HOUR_S)[: DAYS * 24])
    results = last_results()
    return {
        "title": "Forecast",
        "channel": channel,
        "days": strip(hours),
        "hour_numbers": range(24),
        "busiest": max(hours, key=lambda frame: frame.per_second, default=None),
        "total": ForecastFrame(
            messages=sum(frame.messages for frame in hours),
            deliveries=sum(frame.deliveries for frame in hours),
            bytes=sum(frame.bytes for frame in hours),
            low=sum(frame.low for frame in hours),
            high=sum(frame.high for frame in hours),
        ),
        "rough": [frame for frame in hours if frame.basis != ForecastFrame.Basis.WEEKS],
        "hot_hours": _hottest(frame for frame in hours if frame.is_hot),
        "hot_minutes": _hottest(frames.filter(span_s=MINUTE_S).order_by("-deliveries")[:SHOWN]),
        "parts": [] if channel else parts(),
        "result": results[0] if results else {},
        "tested": next((it for it in results if it.get("error_percent") is not None), None),
    }


def last_results() -> list[dict[str, Any]]:
    """Return results of the last runs, newest first, since not every run measures the error."""
    runs = PipelineRun.objects.filter(job="forecast", state=PipelineRun.State.FINISHED)
    return list(runs.order_by("-id").values_list("result", flat=True)[:RUNS])


def strip(hours: list[ForecastFrame]) -> list[Day]:
    """Return days of 24 hours. Hot hours have the darkest shade, and do not scale the others."""
    calm = [frame.deliveries for frame in hours if not frame.is_hot]
    top = max(calm or [frame.deliveries for frame in hours], default=0.0)
    found = []
    for day, some in groupby(hours, lambda frame: frame.begins_at.date()):
        by_hour = {frame.begins_at.hour: frame for frame in some}
        found.append(Day(day, [_cell(by_hour.get(hour), top) for hour in range(24)]))
    return found


def heat(value: float, top: float) -> int:
    """Return the shade of an amount: 0 for none, then equal steps up to ``HEATS - 1``."""
    if value <= 0 or top <= 0:
        return 0
    return min(HEATS - 1, 1 + int((HEATS - 1) * value / top))


def parts() -> list[Part]:
    """Return the busiest channels."""
    rows = list(
        ForecastFrame.objects.filter(span_s=HOUR_S)
        .exclude(channel_id=ALL)
        .values_list("channel_id")
        .annotate(sent=Sum("deliveries"), all=Sum("messages"))
        .order_by("-sent", "channel_id")[:SHOWN]
    )
    known = Channel.objects.in_bulk([key for key, _, _ in rows])
    most = max((sent for _, sent, _ in rows), default=0.0) or 1.0
    return [
        Part(known[key], messages, sent, 100 * sent / most)
        for key, sent, messages in rows
        if key in known
    ]


def _cell(frame: ForecastFrame | None, top: float) -> Cell:
    return Cell(frame, heat(frame.deliveries if frame else 0.0, top))


def _hottest(frames: Any) -> list[ForecastFrame]:
    return sorted(frames, key=lambda frame: -frame.deliveries)[:SHOWN]
