"""Define read-only admin pages of messages, bodies and idempotency records, in index order."""

import json
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from unfold.contrib.filters.admin import TextFilter

from channels_app.admin import base, body
from channels_app.admin.base import WithPageContext, display
from channels_app.admin.filters import DropdownFilter, Since
from channels_app.core import ids, times
from channels_app.core.encryption import Unreadable
from channels_app.models import Channel, Message
from channels_app.registry import data_encryption, viewing

Shown = Message.Shown
TONE = {
    Shown.ACKNOWLEDGED: "busy",
    Shown.OUT_FOR_DELIVERY: "busy",
    Shown.FINISHED: "good",
    Shown.CANCELLED: "calm",
}
STORED = (Shown.ACKNOWLEDGED, Shown.CANCELLED)
"""States with an index on the stored state; the others are derived from the deliveries."""


class ChannelFilter(DropdownFilter):
    """Filter by channel, through the index (channel, id)."""

    title = "channel"
    parameter_name = "channel"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Every channel."""
        names = Channel.objects.order_by("slug").values_list("id", "slug")
        return [(str(number), slug) for number, slug in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        """Messages of the channel."""
        chosen = self.value()
        return queryset.filter(channel_id=chosen) if chosen and chosen.isdecimal() else queryset


class StateFilter(DropdownFilter):
    """Filter by shown state.

    An index supports those of `STORED`, but not together with a channel.
    """

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """The states that people see."""
        return [(shown.value, shown.value) for shown in Shown]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        """Messages in the state; without a suitable index, only among the newest."""
        if self.value() not in Shown.values:
            return queryset
        shown = Shown(self.value())
        is_served = shown in STORED and not request.GET.get("channel")
        rows = queryset if is_served else base.newest(queryset)
        return rows.filter(Message.in_state(shown))


class EventTypeFilter(TextFilter):
    """Filter by event type, which has no index: only the newest messages are searched."""

    title = f"event type (of the newest {base.WINDOW:,})"
    parameter_name = "event_type"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        """Exact matches."""
        wanted = self.value()
        return base.newest(queryset).filter(event_type=wanted) if wanted else queryset


@admin.register(Message)
class MessageAdmin(WithPageContext, base.BigList):
    """Accepted messages."""

    id_prefix = ids.MESSAGE
    list_display = (
        "name",
        "accepted",
        "channel",
        "producer",
        "event_type",
        "shown_state",
        "priority",
        "size",
        "consumer_count",
        "due",
    )
    list_fetched = ("channel", "producer")
    list_filter = (ChannelFilter, StateFilter, Since, EventTypeFilter)
    search_fields = ("id",)
    search_help_text = "msg_… (the whole id)"
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("name", "shown_state"),
                    ("channel", "producer"),
                    ("accepted", "due"),
                    ("event_type", "priority"),
                    ("ordering_key", "idempotency_key"),
                    ("expires", "consumer_count"),
                )
            },
        ),
        ("Content", {"fields": (("content_type", "size"), "forwarded")}),
    )
    readonly_fields = ("name", "shown_state", "accepted", "due", "expires", "size", "forwarded")
    actions_detail = ("see_audit",)
    change_form_outer_before_template = "channels_app/waiting.html"
    change_form_outer_after_template = "channels_app/message.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        """Annotate the rows for their state."""
        return Message.with_open(super().get_queryset(request))

    def get_fieldsets(self, request: HttpRequest, obj: Message | None = None) -> Any:
        """Show forwarded headers only to users who may see the body."""
        if obj is None or body.may_see(request, obj.channel):
            return self.fieldsets
        return (self.fieldsets[0], ("Content", {"fields": (("content_type", "size"),)}))

    def audit_target(self, obj: Message) -> str:
        """The name that the services use."""
        return f"message:{obj}"

    def get_list_display(self, request: HttpRequest) -> Any:
        """Show the due time of waiting messages, else the state and number of consumers."""
        waits = request.GET.get("state") == Shown.ACKNOWLEDGED
        without = {"shown_state", "consumer_count"} if waits else {"due"}
        return [name for name in super().get_list_display(request) if name not in without]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Message], search_term: str
    ) -> tuple[QuerySet[Message], bool]:
        """Search by exact id; another term finds nothing, since it would scan the table."""
        term = search_term.strip().lower()
        if not term:
            return queryset, False
        number = ids.message_number(term)
        return (queryset.filter(pk=number) if number else queryset.none()), False

    def row_context(self, request: HttpRequest, row: Message) -> dict[str, Any]:
        """Its body and its deliveries."""
        first = row.deliveries.order_by("consumer_id").prefetch_related("consumer")
        deliveries = list(first[:100])
        waits = any(delivery.state == "queued" for delivery in deliveries)
        shown = body.shown_to(request, row)
        if body.may_see(request, row.channel):
            team_id = row.producer.team_id if row.producer else None
            viewing.note(
                base.principal(request), f"message:{row}", "body", "headers", team_id=team_id
            )
        return {
            "body": shown,
            "curl": body.publishing(row, shown.data) if shown.data else "",
            "curl_note": "Publishes it again, with your API key in KEY.",
            "deliveries": deliveries,
            "may_move": self.has_operate_permission(request)
            and (waits or row.state == Message.State.ACCEPTED),
            "due_at": request.GET.get("due_at", times.text(row.due_at)),
        }

    def get_urls(self) -> list[URLPattern]:
        """Add a URL that downloads the body."""
        download = self.admin_site.admin_view(self.download)
        own = path("<path:object_id>/body", download, name="channels_app_message_body")
        return [own, *super().get_urls()]

    def download(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The exact bytes as a download, which the browser does not render."""
        base.require(self.has_view_permission(request))
        message = self.get_object(request, object_id)
        if message is None:
            raise Http404("There is no such message.")
        base.require(body.may_see(request, message.channel))
        team_id = message.producer.team_id if message.producer else None
        viewing.note(base.principal(request), f"message:{message}", "body", team_id=team_id)
        try:
            data = body.read(message)
        except Unreadable as error:
            raise Http404(str(error)) from None
        response = HttpResponse(data, content_type="application/octet-stream")
        response["Content-Disposition"] = f'attachment; filename="{message}.body"'
        return response

    @display(description="Message")
    def name(self, message: Message) -> str:
        """Its public id."""
        return base.public_id(str(message))

    @display(description="State")
    def shown_state(self, message: Message) -> str:
        """Its state, derived from its deliveries."""
        return base.label(message.shown, TONE[message.shown])

    @display(description="Accepted")
    def accepted(self, message: Message) -> str:
        """When the broker accepted it."""
        return base.instant(message.accepted_at)

    @display(description="Due")
    def due(self, message: Message) -> str:
        """Earliest time of delivery."""
        return base.instant(message.due_at)

    @display(description="Expires")
    def expires(self, message: Message) -> str:
        """When it is no longer sent."""
        return base.instant(message.expires_at)

    @display(description="Headers")
    def forwarded(self, message: Message) -> str:
        """The headers that are forwarded to consumers."""
        headers = data_encryption.headers_of(message)
        return base.mono(json.dumps(headers, ensure_ascii=False)) if headers else base.NONE

    @display(description="Size")
    def size(self, message: Message) -> str:
        """Bytes of its body."""
        return f"{message.body_bytes:,} B"
