"""Show rows that wait for something else, and notifications, in the console, read-only.

These are early acknowledgements, providers' ids and dead letters to be published.
"""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

from channels_app.admin import base
from channels_app.admin.base import display
from channels_app.core import ids
from delivery.models import Correlation, DeadLetter, HealthStatus, Notification, PendingAck


@admin.register(HealthStatus)
class HealthStatusAdmin(base.ReadOnly):
    """The last notified status of each consumer."""

    list_display = ("consumer", "state", "since_shown")
    list_select_related = ("consumer",)
    ordering = ("-since",)

    @display(description="Since", ordering="since")
    def since_shown(self, status: HealthStatus) -> str:
        """Since when it has this status."""
        return base.instant(status.since)


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


class OfDelivery(base.BigList):
    """Rows whose key is a delivery's, found by the delivery's id."""

    search_fields = ("delivery_id",)
    search_help_text = "dlv_… (the whole id)"

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """Find the row of a delivery."""
        term = search_term.strip().lower()
        if not term:
            return queryset, False
        number = ids.from_public(ids.DELIVERY, term)
        return (queryset.filter(pk=number) if number else queryset.none()), False

    @display(description="Delivery")
    def delivery(self, row: PendingAck | DeadLetter) -> str:
        """Link to the delivery."""
        url = reverse("admin:delivery_delivery_change", args=[row.delivery_id])
        return base.linked(url, ids.to_public(ids.DELIVERY, row.delivery_id))


@admin.register(PendingAck)
class PendingAckAdmin(OfDelivery):
    """Kept for milliseconds, until the attempt that they belong to is recorded."""

    list_display = ("word", "delivery", "said")
    fields = ("delivery", "word", "said")
    readonly_fields = ("delivery", "word", "said")

    @display(description="Result")
    def word(self, row: PendingAck) -> str:
        """Whether processing succeeded."""
        return base.label("ok", "good") if row.ok else base.label("failed", "bad")

    @display(description="Received at")
    def said(self, row: PendingAck) -> str:
        """When the acknowledgement arrived."""
        return base.instant(row.said_at)


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


@admin.register(DeadLetter)
class DeadLetterAdmin(OfDelivery):
    """Kept until the message is published on the consumer's dead-letter channel."""

    list_display = ("delivery", "due")
    fields = ("delivery", "due")
    readonly_fields = ("delivery", "due")

    @display(description="Due at")
    def due(self, row: DeadLetter) -> str:
        """When it is due to be published."""
        return base.instant(row.due_at)
