"""Define the admin page of providers' ids that callbacks refer to."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

from channels_app.admin import base
from channels_app.admin.base import display
from channels_app.core import ids
from delivery.models import Correlation


@admin.register(Correlation)
class CorrelationAdmin(base.BigList):
    """Kept for two days, so that a provider's callback finds its delivery."""

    list_display = ("number", "delivery", "word", "noted")
    search_fields = ("id",)
    search_help_text = "the id in hexadecimal (whole)"
    fields = ("number", "delivery", "word", "noted")
    readonly_fields = ("number", "delivery", "word", "noted")

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """Find one id."""
        term = search_term.strip().lower()
        if not term:
            return queryset, False
        is_hex = 0 < len(term) <= 16 and set(term) <= set("0123456789abcdef")
        number = int(term, 16) if is_hex else 0
        known = 0 < number < 2**63
        return (queryset.filter(pk=number) if known else queryset.none()), False

    @display(description="Id")
    def number(self, row: Correlation) -> str:
        """Consumer and provider's id, combined in one number."""
        return base.mono(f"{row.id:x}")

    @display(description="Delivery")
    def delivery(self, row: Correlation) -> str:
        """Link to its delivery."""
        if row.delivery_id is None:
            return base.NONE
        url = reverse("admin:delivery_delivery_change", args=[row.delivery_id])
        return base.linked(url, ids.to_public(ids.DELIVERY, row.delivery_id))

    @display(description="Result")
    def word(self, row: Correlation) -> str:
        """The result received before the id was known."""
        if row.ok is None:
            return base.NONE
        return base.label("ok", "good") if row.ok else base.label("failed", "bad")

    @display(description="Stored at")
    def noted(self, row: Correlation) -> str:
        """When it was stored."""
        return base.instant(row.noted_at)
