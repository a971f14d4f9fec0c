"""Define the admin pages of channels and their event types."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from channels_app.admin import base
from channels_app.admin.base import WithPageContext, display
from channels_app.admin.filters import RelatedDropdownFilter
from channels_app.admin.forms import ChannelForm, EventTypeForm
from channels_app.conf import conf
from channels_app.models import Channel, Consumer, EventType, QuotaUsage
from channels_app.registry import event_types

ACCESS = ("exposure", "history", "sensitive")
"""Fields that decide who can see the channel and its messages."""
CONSUMERS_SHOWN = 20


@admin.register(Channel)
class ChannelAdmin(WithPageContext, base.ResourceAdmin):
    """Channels. Only `manage.py delete_channel` deletes them."""

    form = ChannelForm
    identity = ("slug",)
    list_display = ("slug", "state", "kind", "exposure", "description", "changed")
    list_filter = ("exposure", "kind", "paused")
    search_fields = ("slug", "description")
    ordering = ("slug",)
    actions_detail = ("see_audit",)
    readonly_fields = ("created_at", "updated_at")
    fieldsets = (
        (None, {"fields": ("seen", "slug", "description", *ACCESS, "kind", "paused", "reason")}),
        (
            "Messages",
            {
                "fields": (
                    ("encrypt_bodies", "require_idempotency_key"),
                    ("idempotency_scope", "idempotency_window_s"),
                    "max_body_bytes",
                    ("max_waiting_messages", "max_waiting_bytes"),
                    "max_future_days",
                    "content_types",
                    ("ordering", "ordering_key_path"),
                    "reorder_window_ms",
                )
            },
        ),
        (
            "Delivery and retention",
            {"fields": ("default_retry", ("retention_days", "dead_retention_days"))},
        ),
        ("History", {"fields": (("created_at", "updated_at"),)}),
    )

    def audit_target(self, obj: Channel) -> str:
        """The name that register_channel uses."""
        return f"channel:{obj.slug}"

    change_form_outer_before_template = "channels_app/channel.html"

    def row_context(self, request: HttpRequest, row: Channel) -> dict[str, Any]:
        """Usage of its quota, and its consumers."""
        used = QuotaUsage.of(QuotaUsage.Scope.CHANNEL, row.pk)
        rows = Consumer.objects.filter(channel=row).exclude(state=Consumer.State.RETIRED)
        consumers = rows.select_related("health").order_by("client_id")[: CONSUMERS_SHOWN + 1]
        return {
            "bars": row.quota(conf().channel_quota).bars(used),
            "consumers": [
                (consumer, base.label(*consumer.condition[:2]))
                for consumer in consumers[:CONSUMERS_SHOWN]
            ],
            "has_more": len(consumers) > CONSUMERS_SHOWN,
        }

    @display(description="State")
    def state(self, channel: Channel) -> str:
        """Whether it delivers."""
        return base.label("paused", "wait") if channel.paused else base.label("open", "good")

    @display(description="Changed", ordering="updated_at")
    def changed(self, channel: Channel) -> str:
        """The last change of its settings."""
        return base.instant(channel.updated_at)


@admin.register(EventType)
class EventTypeAdmin(base.ResourceAdmin):
    """Event types with their schemas."""

    form = EventTypeForm
    identity = ("channel", "name")
    list_display = ("name", "channel", "owner", "validated", "deprecated", "description")
    list_select_related = ("channel", "producer")
    list_filter = (("channel", RelatedDropdownFilter), "deprecated")
    search_fields = ("name", "channel__slug", "description")
    autocomplete_fields = ("channel",)
    ordering = ("channel__slug", "name")
    actions_detail = ("see_audit",)
    fieldsets = (
        (None, {"fields": ("seen", "channel", "name", "description", "deprecated")}),
        ("Bodies", {"fields": ("schema", "example")}),
    )

    def audit_target(self, obj: EventType) -> str:
        """The name that register_event_type uses."""
        return f"event-type:{obj.channel.slug}/{obj.name}"

    @display(description="Owner")
    def owner(self, event_type: EventType) -> str:
        """The producer that may change it, with its team."""
        return event_type.producer.slug if event_type.producer else base.NONE

    @display(description="Validated", boolean=True)
    def validated(self, event_type: EventType) -> bool:
        """Whether bodies are checked against a schema."""
        return event_type.schema is not None

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Event types may be deleted: messages of that type are accepted unchecked from then on."""
        return bool(request.user.has_perm("channels_app.delete_eventtype"))

    def delete_model(self, request: HttpRequest, obj: EventType) -> None:
        """Delete through the step."""
        event_types.remove(obj.channel.slug, obj.name, principal=base.principal(request))

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        """Delete the selected ones, each through the step."""
        for event_type in queryset.select_related("channel"):
            self.delete_model(request, event_type)
