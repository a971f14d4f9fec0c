"""Define the admin page of traffic."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.contrib import admin
from django.http import HttpRequest

from channels_app.admin import base
from channels_app.admin.base import WithPageContext, display
from delivery.core.timing import BOUNDS_MS, in_words, quantile_ms
from delivery.models import Traffic
from delivery.models.traffic import ALL


class Bucket(NamedTuple):
    """A histogram bucket with its count."""

    name: str
    number: int
    percent: float
    length: float
    """Length of its bar; the largest bucket has 100."""


@admin.register(Traffic)
class TrafficAdmin(WithPageContext, base.BigList):
    """The counts behind the charts."""

    list_display = ("begins", "span_s", "whose", "accepted", "delivered", "failed", "dead")
    list_filter = ("span_s",)
    search_fields = ("consumer_id",)
    search_help_text = "number of the consumer; 0 is all together"
    fields = (("begins", "span_s"), ("whose", "accepted"), ("delivered", "failed"), "dead")
    readonly_fields = ("begins", "whose")
    change_form_outer_after_template = "delivery/latency.html"

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """Find the rows of one consumer."""
        term = search_term.strip()
        if not term:
            return queryset, False
        return (queryset.filter(consumer_id=term) if term.isdecimal() else queryset.none()), False

    def row_context(self, request: HttpRequest, row: Traffic) -> dict[str, Any]:
        """Its latency histogram."""
        return {
            "quantiles": [
                (f"p{percent}", in_words(quantile_ms(row.latency, percent / 100)))
                for percent in (50, 95, 99)
            ],
            "buckets": buckets(row.latency),
        }

    @display(description="Beginning")
    def begins(self, traffic: Traffic) -> str:
        """When it begins."""
        return base.instant(traffic.begins_at, exact=False)

    @display(description="Consumer")
    def whose(self, traffic: Traffic) -> str:
        """Its consumer, or all consumers."""
        return "all" if traffic.consumer_id == ALL else str(traffic.consumer_id)


def buckets(counts: Sequence[int]) -> list[Bucket]:
    """Return buckets from the fastest to the slowest used one; empty without deliveries."""
    filled = [place for place, count in enumerate(counts) if count]
    if not filled:
        return []
    names = [f"up to {in_words(bound)}" for bound in BOUNDS_MS]
    names.append(f"over {in_words(BOUNDS_MS[-1])}")
    whole, most = sum(counts), max(counts)
    return [
        Bucket(names[place], counts[place], 100 * counts[place] / whole, 100 * counts[place] / most)
        for place in range(filled[0], filled[-1] + 1)
    ]
