"""Show the console's page of usage per month, and export it as CSV."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from django.contrib.humanize.templatetags.humanize import intcomma
from django.db.models import QuerySet, Sum
from django.db.models.functions import TruncDay
from django.http import HttpRequest, StreamingHttpResponse
from django.template.defaultfilters import filesizeformat
from django.utils.http import urlencode

from broker_site.console import charts
from channels_app.admin import pages
from channels_app.database import clock
from channels_app.models import Channel, Consumer, Producer
from delivery.core.timing import in_words
from delivery.models import LatencyHour, UsageHour
from pipeline.contract import csv_cells
from pipeline.contract.histogram import percentile

COUNTED = (
    *("messages", "bytes", "delivered", "dead", "cancelled"),
    *("attempts", "failed_attempts", "bytes_out"),
)
KEYS = ("producer_id", "channel_id", "consumer_id")
SHOWN = 300
"""Rows on the page, those with most attempts first; the CSV file has all."""
PERCENTS = (50, 95, 99)
STEPS = ("month", "day", "hour")
"""Time units of a row in the CSV file."""
FLOW = (
    ("accepted", "accepted", "messages"),
    ("delivered", "delivered", "delivered"),
    ("failed attempts", "failed", "failed_attempts"),
)
SIZES = (("accepted", "accepted", "bytes"), ("delivered", "delivered", "bytes_out"))

Row = dict[str, Any]


class Month(NamedTuple):
    """A month in UTC."""

    first: date

    @property
    def name(self) -> str:
        """As in a URL: ``2027-03``."""
        return f"{self.first:%Y-%m}"

    @property
    def next(self) -> "Month":
        """The month after it."""
        return Month((self.first + timedelta(days=31)).replace(day=1))

    @property
    def before(self) -> "Month":
        """The month before it."""
        return Month((self.first - timedelta(days=1)).replace(day=1))

    @property
    def days(self) -> list[date]:
        """Its days."""
        number = (self.next.first - self.first).days
        return [self.first + timedelta(days=place) for place in range(number)]

    def rows(self, table: QuerySet[Any]) -> QuerySet[Any]:
        """Rows for hours of the month."""
        low, high = (
            datetime(day.year, day.month, 1, tzinfo=UTC) for day in (self.first, self.next.first)
        )
        return table.filter(hour__gte=low, hour__lt=high)


def download(request: HttpRequest) -> StreamingHttpResponse:
    """The month as CSV: a row per time unit, producer, channel and consumer."""
    month = chosen(request)
    step = request.GET.get("by", "")
    step = step if step in STEPS else STEPS[0]
    return pages.csv_file(f"usage-{month.name}-by-{step}", _lines(month, step))


def chosen(request: HttpRequest) -> Month:
    """The month in the URL, else the current one."""
    try:
        first = date.fromisoformat(f"{request.GET.get('month', '')}-01")
    except ValueError:
        first = clock.now().date()
    # Limit the year to what calendar arithmetic supports.
    return Month(first.replace(day=1, year=min(max(first.year, 2000), 9000)))


class Names:
    """Names of producers, channels and consumers; deleted ones are shown by their number."""

    def __init__(self, consumer_ids: Iterable[int] | None = None) -> None:
        self.producers = dict(Producer.objects.values_list("id", "slug"))
        self.channels = dict(Channel.objects.values_list("id", "slug"))
        consumers = Consumer.objects.all()
        if consumer_ids is not None:
            consumers = consumers.filter(id__in=set(consumer_ids))
        self.consumers = dict(consumers.values_list("id", "client_id"))

    def of(self, row: Row) -> tuple[str, str, str]:
        """Names of producer, channel and consumer; '' for none."""
        return (
            _name(self.producers, row["producer_id"]),
            _name(self.channels, row["channel_id"]),
            _name(self.consumers, row["consumer_id"]),
        )


@pages.page(
    "usage", permission="delivery.view_usagehour", template="admin/usage.html", csv=download
)
def context(request: HttpRequest) -> dict[str, Any]:
    """The usage of a month."""
    month = chosen(request)
    rows = month.rows(UsageHour.objects.all())
    totals = list(rows.values(*KEYS).annotate(**_sums()).order_by("-attempts", "-messages", *KEYS))
    whose = named(totals[:SHOWN])
    return {
        "title": f"Usage, {month.first:%B %Y}",
        "month": month,
        "asked": urlencode({"since": str(month.first), "until": str(month.next.first)}),
        "steps": STEPS,
        "is_known": UsageHour.objects.exists(),
        "facts": _facts(totals),
        "rows": whose,
        "left_out": len(totals) - len(whose),
        "latencies": latencies(month, whose),
        "charts": _charts(month, rows) if totals else [],
    }


def named(rows: list[Row]) -> list[Row]:
    """The rows with names, and with formatted sizes."""
    names = Names(row["consumer_id"] for row in rows)
    labelled = []
    for row in rows:
        producer, channel, consumer = names.of(row)
        labelled.append(
            row
            | {"producer": producer, "channel": channel, "consumer": consumer}
            | {name: filesizeformat(row[name]) for name in ("bytes", "bytes_out")}
        )
    return sorted(labelled, key=lambda row: (row["producer"], row["channel"], row["consumer"]))


def latencies(month: Month, rows: list[Row]) -> list[Row]:
    """Latency percentiles of the consumers in these rows, over the month."""
    names = {row["consumer_id"]: f"{row['channel']} / {row['consumer']}" for row in rows}
    names.pop(0, None)
    spread: defaultdict[int, dict[int, int]] = defaultdict(dict)
    counts = month.rows(LatencyHour.objects.filter(consumer_id__in=names))
    for consumer_id, bucket, count in (
        counts.values_list("consumer_id", "bucket").annotate(total=Sum("count")).order_by()
    ):
        spread[consumer_id][bucket] = int(count)
    return [
        {
            "name": name,
            "consumer_id": key,
            "count": intcomma(sum(spread[key].values())),
            "times": [in_words(percentile(spread[key], percent)) for percent in PERCENTS],
        }
        for key, name in sorted(names.items(), key=lambda item: item[1])
        if key in spread
    ]


def _lines(month: Month, step: str) -> Iterator[list[Any]]:
    """The lines of the file."""
    yield [step, "producer", "channel", "consumer", *COUNTED]
    names = Names()
    rows: QuerySet[Any] = month.rows(UsageHour.objects.all())
    if step == "hour":
        rows = rows.values("hour", *KEYS, *COUNTED).order_by("hour", *KEYS)
    elif step == "day":
        rows = rows.annotate(day=TruncDay("hour")).values("day", *KEYS).annotate(**_sums())
        rows = rows.order_by("day", *KEYS)
    else:
        rows = rows.values(*KEYS).annotate(**_sums()).order_by(*KEYS)
    for row in rows.iterator():
        at = month.name if step == "month" else f"{row[step]:%Y-%m-%d %H:%M}"
        at = at[:10] if step == "day" else at
        shown = (csv_cells.safe(name) for name in names.of(row))
        yield [at, *shown, *(int(row[name]) for name in COUNTED)]


def _sums() -> dict[str, Sum]:
    return {name: Sum(name) for name in COUNTED}


def _name(names: dict[int, str], key: int) -> str:
    return names.get(key) or (f"#{key}" if key else "")


def _facts(rows: list[Row]) -> list[tuple[str, str]]:
    """The totals of the month."""
    total = {name: sum(row[name] for row in rows) for name in COUNTED}
    return [
        ("Messages", intcomma(total["messages"])),
        ("Accepted", filesizeformat(total["bytes"])),
        ("Delivered", intcomma(total["delivered"])),
        ("Dead", intcomma(total["dead"])),
        ("Attempts", intcomma(total["attempts"])),
        ("Failed", intcomma(total["failed_attempts"])),
        ("Sent", filesizeformat(total["bytes_out"])),
    ]


def _charts(month: Month, rows: QuerySet[Any]) -> list[charts.Chart]:
    """Charts per day, up to the last day with data."""
    by_day = {
        row["day"].date(): row
        for row in rows.annotate(day=TruncDay("hour")).values("day").annotate(**_sums()).order_by()
    }
    days = [day for day in month.days if day <= max(by_day)]
    times = [f"{day:%d %b}" for day in (days[0], days[len(days) // 2], days[-1])]

    def line(name: str, tone: str, column: str) -> charts.ChartSeries:
        values = [float(by_day[day][column]) if day in by_day else 0.0 for day in days]
        return charts.ChartSeries(name, f"hs-line-{tone}", values)

    flow = [line(*each) for each in FLOW]
    sizes = [line(*each) for each in SIZES]
    return [
        charts.linear("Per day", flow, times, charts.amount),
        charts.linear("Bytes per day", sizes, times, lambda value: filesizeformat(int(value))),
    ]
