"""Define the admin page of notifications."""

from django.contrib import admin

from channels_app.admin import base
from channels_app.admin.base import display
from delivery.models import Notification


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
