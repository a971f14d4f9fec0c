"""Show the stored hours of usage and of latency in the console."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from channels_app.admin import base
from channels_app.admin.base import display
from delivery.models import LatencyHour, UsageHour
from delivery.rules.latency import in_words
from pipeline.contract.histogram import bounds


class Hours(base.BigList):
    """Rows by hour, the latest written first."""

    search_fields = ("hour",)
    search_help_text = "an hour in UTC: 2026-11-22 04"

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """Find the rows of one hour, or of one day."""
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            since = datetime.fromisoformat(term).replace(tzinfo=UTC)
        except ValueError:
            return queryset.none(), False
        span = timedelta(hours=1) if len(term) > len("2026-11-22") else timedelta(days=1)
        return queryset.filter(hour__gte=since, hour__lt=since + span), False

    @display(description="Hour")
    def begins(self, row: UsageHour | LatencyHour) -> str:
        """When it begins."""
        return base.instant(row.hour, exact=False)

    @display(description="Consumer")
    def whose(self, row: UsageHour | LatencyHour) -> str:
        """Its number."""
        return str(row.consumer_id) if row.consumer_id else base.NONE


@admin.register(UsageHour)
class UsageHourAdmin(Hours):
    """The counts for billing; the page Usage totals them."""

    list_display = (
        *("begins", "channel_id", "producer_id", "whose", "messages", "bytes"),
        *("delivered", "dead", "cancelled", "attempts", "failed_attempts", "bytes_out"),
    )
    fields = (
        ("begins", "whose"),
        ("channel_id", "producer_id"),
        ("messages", "bytes"),
        ("delivered", "dead", "cancelled"),
        ("attempts", "failed_attempts", "bytes_out"),
    )
    readonly_fields = ("begins", "whose")


@admin.register(LatencyHour)
class LatencyHourAdmin(Hours):
    """The counts for percentiles."""

    list_display = ("begins", "whose", "took", "count")
    fields = (("begins", "whose"), ("took", "count"))
    readonly_fields = ("begins", "whose", "took")

    @display(description="Took")
    def took(self, row: LatencyHour) -> str:
        """The range of its bucket."""
        low, high = (in_words(ms) for ms in bounds(row.bucket))
        return f"{low} to {high}"
