"""Admin page of words of consumers that came before our own request had its answer."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

from channels_app.admin import base
from channels_app.admin.base import display
from channels_app.rules import ids
from delivery.models import EarlyAck


@admin.register(EarlyAck)
class EarlyAckAdmin(base.BigList):
    """Kept for milliseconds, until the attempt that they belong to is recorded."""

    list_display = ("word", "delivery", "said")
    search_fields = ("delivery_id",)
    search_help_text = "dlv_… (the whole id)"
    fields = ("delivery", "word", "said")
    readonly_fields = ("delivery", "word", "said")

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """The word about a delivery."""
        term = search_term.strip().lower()
        if not term:
            return queryset, False
        number = ids.from_public(ids.DELIVERY, term)
        return (queryset.filter(pk=number) if number else queryset.none()), False

    @display(description="Delivery")
    def delivery(self, row: EarlyAck) -> str:
        """About which it was said, a click away."""
        url = reverse("admin:delivery_delivery_change", args=[row.delivery_id])
        return base.linked(url, ids.to_public(ids.DELIVERY, row.delivery_id))

    @display(description="Word")
    def word(self, row: EarlyAck) -> str:
        """Whether it worked."""
        return base.label("ok", "good") if row.ok else base.label("failed", "bad")

    @display(description="Said at")
    def said(self, row: EarlyAck) -> str:
        """When."""
        return base.instant(row.said_at)
