"""Admin pages of what the owners of consumers were told: for looking something up, read-only."""

from django.contrib import admin

from channels_app.admin import base
from channels_app.admin.base import display
from delivery.models import Notice, Standing


@admin.register(Standing)
class StandingAdmin(base.ReadOnly):
    """What was told last of each consumer."""

    list_display = ("consumer", "state", "beginning")
    list_select_related = ("consumer",)
    ordering = ("-since",)

    @display(description="Since", ordering="since")
    def beginning(self, standing: Standing) -> str:
        """Since when."""
        return base.instant(standing.since)


@admin.register(Notice)
class NoticeAdmin(base.BigList):
    """What people were told of, newest first."""

    list_display = ("kind", "consumer", "limit", "time", "published", "mailed", "reason")
    list_fetched = ("consumer",)

    @display(description="At")
    def time(self, notice: Notice) -> str:
        """When it happened."""
        return base.instant(notice.at)

    @display(description="E-mail", boolean=True)
    def mailed(self, notice: Notice) -> bool:
        """Whether it has gone to somebody."""
        return bool(notice.mailed_to)
