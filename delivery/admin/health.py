"""Define the admin pages of delivery health and usage."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Case, Max, QuerySet, When
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode

from channels_app.admin import base, pages
from channels_app.admin.base import display
from channels_app.models import Consumer
from delivery.core.timing import in_words
from delivery.models import HealthDay, Notification
from delivery.models.reports import NONE

SHOWN = 100
"""Maximum consumers and maximum hosts on the page."""
DAYS = 14
"""Days of a sparkline."""
WELL, POOR = 90, 60
"""Bars are green from the first score, and red below the second."""
WIDTH, HEIGHT = 112, 28
"""Size of a sparkline."""


@dataclass(frozen=True, slots=True)
class HealthRow:
    """One consumer or host on the page."""

    row: HealthDay
    name: str
    links: list[tuple[str, str]]
    """Links to related pages: label and URL."""
    spark: str
    """SVG path of the last days' scores."""
    spark_text: str
    """The same as text, for screen readers."""

    @property
    def tone(self) -> str:
        """Colour of its bar."""
        score = self.row.score
        # A low score without a failure only means that there were few attempts.
        if score is None or (score < WELL and not self.row.failed):
            return "calm"
        return "good" if score >= WELL else "wait" if score >= POOR else "bad"

    @property
    def success(self) -> str:
        """Share of successful attempts."""
        tried = self.row.attempts
        return f"{1 - self.row.failed / tried:.2%}" if tried else base.NONE

    @property
    def change(self) -> str:
        """Difference of the score to the 7 days before."""
        before = self.row.week_before.get("score")
        if before is None or self.row.score is None:
            return ""
        return f"{self.row.score - before:+d}" if self.row.score != before else "as before"

    @property
    def times(self) -> str:
        """Latency of successful attempts."""
        row = self.row
        return " / ".join(in_words(ms) for ms in (row.p50_ms, row.p95_ms, row.p99_ms))

    @property
    def times_before(self) -> str:
        """Latency in the 7 days before."""
        before = self.row.week_before
        latencies = [before.get(f"p{percent}_ms") for percent in (50, 95, 99)]
        return " / ".join(in_words(ms) for ms in latencies)

    @property
    def recovery(self) -> str:
        """Median time to recover."""
        return _seconds(self.row.recovery_median_s)

    @property
    def longest(self) -> str:
        """Longest time to recover."""
        return _seconds(self.row.recovery_longest_s)

    @property
    def outage(self) -> str:
        """Total time of outages."""
        return _seconds(self.row.outage_s) if self.row.outage_s else base.NONE

    @property
    def budget(self) -> str:
        """Share of the week's error budget that is used."""
        used = self.row.budget_used
        return base.NONE if used is None else f"{used:,.0%}"

    @property
    def burns(self) -> list[tuple[str, str]]:
        """Burn rates by window."""
        row = self.row
        rates = (("1 h", row.burn_1h), ("6 h", row.burn_6h), ("24 h", row.burn_24h))
        return [(name, f"{rate:,.3g}") for name, rate in rates if rate is not None]


@pages.page("health", permission="delivery.view_healthday", template="delivery/health.html")
def context(request: HttpRequest) -> dict[str, Any]:
    """Show the worst consumers and hosts of a day, with reasons and links."""
    newest = HealthDay.objects.aggregate(newest=Max("day"))["newest"]
    day = _asked(request) or newest
    rows = HealthDay.objects.filter(day=day) if day else HealthDay.objects.none()
    consumers = _lines(worst(rows.exclude(consumer_id=NONE)))
    hosts = _lines(worst(rows.filter(consumer_id=NONE)))
    return {
        "title": "Health",
        "day": day,
        "is_known": newest is not None,
        "asked": urlencode({"day": str(day)}),
        "before": day and day - timedelta(days=1),
        "next": day and newest and day < newest and day + timedelta(days=1),
        "parts": [("Consumers", consumers), ("Hosts", hosts)],
        "days": DAYS,
        "objective": consumers[0].row.objective if consumers else None,
        "shown": SHOWN,
    }


def worst(rows: QuerySet[HealthDay]) -> list[HealthDay]:
    """Return rows in order of urgency.

    First come those with failures, by score; then those without, since few attempts alone lower the
    score; last those without attempts.
    """
    order = Case(When(attempts=0, then=2), When(failed=0, then=1), default=0)
    return list(rows.annotate(part=order).order_by("part", "score", "-attempts", "host")[:SHOWN])


def spark(scores: Sequence[int | None]) -> str:
    """Return an SVG path: a gap for a missing day, a dot for a single one."""
    step = WIDTH / (len(scores) - 1)
    path, pen = "", "M"
    for place, score in enumerate(scores):
        if score is None:
            pen = "M"
            continue
        path += f"{pen}{place * step:.1f} {2 + (HEIGHT - 4) * (1 - score / 100):.1f}h0"
        pen = "L"
    return path


@admin.register(Notification)
class NotificationAdmin(base.BigList):
    """Notifications to people, newest first."""

    list_display = ("kind", "consumer", "limit", "time", "published", "mailed", "reason")
    list_fetched = ("consumer",)

    @display(description="At")
    def time(self, notification: Notification) -> str:
        """When it happened."""
        return base.instant(notification.at)

    @display(description="E-mail", boolean=True)
    def mailed(self, notification: Notification) -> bool:
        """Whether it was sent by mail."""
        return bool(notification.mailed_to)


def _asked(request: HttpRequest) -> date | None:
    try:
        return date.fromisoformat(request.GET.get("day", ""))
    except ValueError:
        return None


def _lines(rows: list[HealthDay]) -> list[HealthRow]:
    """Add names, links and the days before."""
    consumers = Consumer.objects.select_related("channel").in_bulk(
        [row.consumer_id for row in rows]
    )
    scores = _scores(rows)
    lines = []
    for row in rows:
        consumer = consumers.get(row.consumer_id)
        by_day = scores[row.consumer_id, row.host if row.consumer_id == NONE else ""]
        days = [by_day.get(row.day - timedelta(days=ago)) for ago in reversed(range(DAYS))]
        lines.append(
            HealthRow(
                row,
                f"{consumer.channel.slug} / {consumer.client_id}" if consumer else _name(row),
                _links(row) if consumer else [],
                spark(days),
                ", ".join("-" if score is None else str(score) for score in days),
            )
        )
    return lines


def _name(row: HealthDay) -> str:
    return f"#{row.consumer_id}, deleted" if row.consumer_id else row.host


def _links(row: HealthDay) -> list[tuple[str, str]]:
    deliveries = reverse("admin:delivery_delivery_changelist")
    return [
        ("Consumer", reverse("admin:channels_app_consumer_change", args=[row.consumer_id])),
        ("Dead letters", f"{deliveries}?state=dead&consumer={row.consumer_id}"),
    ]


def _scores(rows: list[HealthDay]) -> defaultdict[tuple[int, str], dict[date, int | None]]:
    """Return scores of the last days by consumer and host; a consumer may have changed its host."""
    scores: defaultdict[tuple[int, str], dict[date, int | None]] = defaultdict(dict)
    if not rows:
        return scores
    day = rows[0].day
    wanted = HealthDay.objects.filter(
        consumer_id__in={row.consumer_id for row in rows},
        day__gt=day - timedelta(days=DAYS),
        day__lte=day,
    )
    if rows[0].consumer_id == NONE:
        wanted = wanted.filter(host__in=[row.host for row in rows])
    for consumer_id, host, at, score in wanted.values_list("consumer_id", "host", "day", "score"):
        scores[consumer_id, host if consumer_id == NONE else ""][at] = score
    return scores


def _seconds(value: float | None) -> str:
    return in_words(None if value is None else 1000 * value)
