"""Admin pages of what comes back out of the lake: how far each restore is, and what waits."""

from typing import Any

from django.contrib import admin
from django.contrib.humanize.templatetags.humanize import intcomma
from django.db.models import QuerySet
from django.utils.safestring import SafeString

from channels_app.admin import base
from channels_app.admin.base import dialog, display
from channels_app.models import Consumer
from channels_app.rules import ids
from delivery.admin.stopping import Stoppable, button
from delivery.models import Restore, Restored, RestoredMessage
from delivery.steps.replay import restore

State = Restore.State
TONE = {
    State.STAGING: "busy",
    State.STAGED: "busy",
    State.FINISHED: "good",
    State.CANCELLED: "calm",
    State.REFUSED: "bad",
}
STOP = dialog("Stop this restore?", "What is queued already is sent all the same.", "Stop it")


@admin.register(Restore)
class RestoreAdmin(Stoppable):
    """Messages out of the lake to one consumer; `python -m pipeline replay` begins them."""

    list_display = ("name", "state_now", "consumer", "progress", "requested_by", "reason", "begun")
    ordering = ("-id",)
    sortable_by = ()
    list_before_template = "delivery/restore_top.html"
    actions_detail = ("stop",)
    fields = (
        ("name", "state_now"),
        ("consumer", "asked"),
        ("requested_by", "reason"),
        ("progress", "rate_per_second"),
        ("begun", "ended"),
        ("replay", "error"),
    )
    readonly_fields = (
        *("name", "state_now", "consumer", "asked", "progress", "begun", "ended", "replay"),
        *("requested_by", "reason", "rate_per_second", "error"),
    )

    def under_way(self) -> QuerySet[Any, Any]:
        """What can be stopped."""
        return Restore.objects.filter(state__in=restore.OPEN)

    stop = button(STOP, "The restore is stopped.", restore.cancel)

    @display(description="Restore")
    def name(self, row: Restore) -> str:
        """Its number."""
        return str(row)

    @display(description="State")
    def state_now(self, row: Restore) -> SafeString:
        """In colour."""
        return base.label(row.state, TONE[State(row.state)])

    @display(description="Consumer")
    def consumer(self, row: Restore) -> str:
        """With its channel."""
        found = Consumer.objects.select_related("channel").filter(id=row.consumer_id).first()
        return f"{found.channel.slug}/{found.client_id}" if found else f"({row.consumer_id})"

    @display(description="Asked for")
    def asked(self, row: Restore) -> str:
        """The command line's options."""
        asked = row.options.get("asked", {})
        parts = (f"{name.replace('_', ' ')} {value}" for name, value in asked.items() if value)
        return "; ".join(parts) or "everything"

    @display(description="Progress")
    def progress(self, row: Restore) -> str:
        """Brought and let in."""
        text = f"{intcomma(row.queued_count)} of {intcomma(row.matched_count)} queued"
        if waiting := row.staged_count - row.queued_count - row.skipped_count:
            text += f", {intcomma(waiting)} staged"
        if row.skipped_count:
            text += f", {intcomma(row.skipped_count)} left out"
        return text

    @display(description="Begun")
    def begun(self, row: Restore) -> str:
        """When."""
        return base.instant(row.created_at, exact=False)

    @display(description="Ended")
    def ended(self, row: Restore) -> str:
        """When."""
        return base.instant(row.finished_at, exact=False)

    @display(description="Replay")
    def replay(self, row: Restore) -> str:
        """Under which its deliveries are known."""
        return ids.to_public(ids.REPLAY, row.replay_id) if row.replay_id else base.NONE


@admin.register(Restored)
class RestoredAdmin(base.BigList):
    """Messages that were brought out of the lake and that the broker has not let in yet."""

    list_display = ("restore_number", "message", "consumer_id", "event_type", "body_bytes")
    fields = list_display
    readonly_fields = ("restore_number", "message")

    def get_queryset(self, request: Any) -> Any:
        """Without bodies, which no page shows."""
        return super().get_queryset(request).defer("body")

    @display(description="Restore")
    def restore_number(self, row: Restored) -> str:
        """Of which it is."""
        return str(row.restore_id)

    @display(description="Message")
    def message(self, row: Restored) -> SafeString:
        """Its public id."""
        return base.public_id(ids.to_public(ids.MESSAGE, row.message_id))


@admin.register(RestoredMessage)
class RestoredMessageAdmin(base.BigList):
    """Messages that are in the tables again and in the lake already."""

    list_display = ("message",)
    fields = list_display
    readonly_fields = list_display

    @display(description="Message")
    def message(self, row: RestoredMessage) -> SafeString:
        """Its public id."""
        return base.public_id(ids.to_public(ids.MESSAGE, row.message_id))
