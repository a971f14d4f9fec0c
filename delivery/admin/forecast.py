"""Show the forecast in the console: load by the hour, hot frames, and the pumps needed."""

from dataclasses import dataclass
from datetime import date
from itertools import chain, groupby
from typing import Any

from django.db.models import Sum
from django.http import HttpRequest, StreamingHttpResponse

from channels_app.admin import pages
from channels_app.models import Channel
from delivery.models import ForecastFrame, PipelineRun
from delivery.models.reports import ALL, HOUR_S, MINUTE_S

DAYS = 14
"""Days on the chart; the CSV file has all of them."""
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
class ForecastDay:
    """A row of the chart."""

    day: date
    cells: list[Cell]


@dataclass(frozen=True, slots=True)
class ChannelShare:
    """A channel's share."""

    channel: Channel
    messages: float
    deliveries: float
    length: float
    """Length of its bar; the busiest channel has 100."""


def download(request: HttpRequest) -> StreamingHttpResponse:
    """All frames, or those of one channel."""
    owner = _owner(request)
    frames = ForecastFrame.objects.order_by("channel_id", "span_s", "begins_at")
    frames = frames.filter(channel_id=owner) if owner else frames
    names = [field.name for field in ForecastFrame._meta.concrete_fields][1:]
    return pages.csv_file("forecast", chain([names], frames.values_list(*names).iterator()))


@pages.page(
    "forecast",
    permission="delivery.view_forecastframe",
    template="delivery/forecast.html",
    csv=download,
)
def context(request: HttpRequest) -> dict[str, Any]:
    """Show the chart of all channels, or of one."""
    owner = _owner(request)
    channel = Channel.objects.get(pk=owner) if owner else None
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
        "tested": next(
            (result for result in results if result.get("error_percent") is not None), None
        ),
    }


def _owner(request: HttpRequest) -> int:
    """The channel in the URL, or ALL."""
    chosen = request.GET.get("channel", "")
    channels = Channel.objects.filter(pk=chosen) if chosen.isdecimal() else Channel.objects.none()
    return channels.values_list("pk", flat=True).first() or ALL


def last_results() -> list[dict[str, Any]]:
    """Return results of the last runs, newest first, since not every run measures the error."""
    runs = PipelineRun.objects.filter(job="forecast", state=PipelineRun.State.FINISHED)
    return list(runs.order_by("-id").values_list("result", flat=True)[:RUNS])


def strip(hours: list[ForecastFrame]) -> list[ForecastDay]:
    """Return days of 24 hours. Hot hours have the darkest shade, and do not scale the others."""
    calm = [frame.deliveries for frame in hours if not frame.is_hot]
    top = max(calm or [frame.deliveries for frame in hours], default=0.0)
    days = []
    for day, frames in groupby(hours, lambda frame: frame.begins_at.date()):
        by_hour = {frame.begins_at.hour: frame for frame in frames}
        days.append(ForecastDay(day, [_cell(by_hour.get(hour), top) for hour in range(24)]))
    return days


def heat(value: float, top: float) -> int:
    """Return the shade of an amount: 0 for none, then equal steps up to ``HEATS - 1``."""
    if value <= 0 or top <= 0:
        return 0
    return min(HEATS - 1, 1 + int((HEATS - 1) * value / top))


def parts() -> list[ChannelShare]:
    """Return the busiest channels."""
    rows = list(
        ForecastFrame.objects.filter(span_s=HOUR_S)
        .exclude(channel_id=ALL)
        .values_list("channel_id")
        .annotate(sent=Sum("deliveries"), all=Sum("messages"))
        .order_by("-sent", "channel_id")[:SHOWN]
    )
    channels = Channel.objects.in_bulk([key for key, _, _ in rows])
    most = max((sent for _, sent, _ in rows), default=0.0) or 1.0
    return [
        ChannelShare(channels[key], messages, sent, 100 * sent / most)
        for key, sent, messages in rows
        if key in channels
    ]


def _cell(frame: ForecastFrame | None, top: float) -> Cell:
    return Cell(frame, heat(frame.deliveries if frame else 0.0, top))


def _hottest(frames: Any) -> list[ForecastFrame]:
    return sorted(frames, key=lambda frame: -frame.deliveries)[:SHOWN]
