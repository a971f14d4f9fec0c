"""Admin pages of messages, their bodies and idempotency records: read-only, in index order."""

import json
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from unfold.contrib.filters.admin import TextFilter

from channels_app import data_encryption
from channels_app.admin import base, body
from channels_app.admin.base import display
from channels_app.admin.choices import DropdownFilter, Since
from channels_app.admin.page_context import WithPageContext
from channels_app.models import Channel, IdempotencyRecord, Message, MessageBody
from channels_app.rules import ids, times
from channels_app.rules.encryption import Unreadable
from channels_app.steps import note_opening

Shown = Message.Shown
TONE = {
    Shown.ACKNOWLEDGED: "busy",
    Shown.OUT_FOR_DELIVERY: "busy",
    Shown.FINISHED: "good",
    Shown.CANCELLED: "calm",
}
STORED = (Shown.ACKNOWLEDGED, Shown.CANCELLED)
"""States that the index on the stored state serves; the others follow from the deliveries."""


class ChannelFilter(DropdownFilter):
    """One channel's messages: the index (channel, id) serves it."""

    title = "channel"
    parameter_name = "channel"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Every channel."""
        names = Channel.objects.order_by("slug").values_list("id", "slug")
        return [(str(number), slug) for number, slug in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        """Those of the channel."""
        chosen = self.value()
        return queryset.filter(channel_id=chosen) if chosen and chosen.isdecimal() else queryset


class StateFilter(DropdownFilter):
    """One state, as shown. An index serves those of `STORED`, but not together with a channel."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """The states as shown."""
        return [(shown.value, shown.value) for shown in Shown]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        """Those in the state; within a channel, and where no index serves it, of the newest."""
        if self.value() not in Shown.values:
            return queryset
        shown = Shown(self.value())
        is_served = shown in STORED and not request.GET.get("channel")
        rows = queryset if is_served else base.newest(queryset)
        return rows.filter(Message.in_state(shown))


class EventTypeFilter(TextFilter):
    """An event type has no index: it is looked for among the newest of what is chosen else."""

    title = f"event type (of the newest {base.WINDOW:,})"
    parameter_name = "event_type"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        """Exact matches."""
        wanted = self.value()
        return base.newest(queryset).filter(event_type=wanted) if wanted else queryset


@admin.register(Message)
class MessageAdmin(WithPageContext, base.BigList):
    """What producers were told is stored."""

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
        """With what their states follow from."""
        return Message.with_open(super().get_queryset(request))

    def get_fieldsets(self, request: HttpRequest, obj: Message | None = None) -> Any:
        """Forwarded headers for who may see the body."""
        if obj is None or body.may_see(request, obj.channel):
            return self.fieldsets
        return (self.fieldsets[0], ("Content", {"fields": (("content_type", "size"),)}))

    def audit_target(self, obj: Message) -> str:
        """As the steps name it."""
        return f"message:{obj}"

    def get_list_display(self, request: HttpRequest) -> Any:
        """Of what waits it matters when it is due; of what was sent, to how many."""
        waits = request.GET.get("state") == Shown.ACKNOWLEDGED
        without = {"shown_state", "consumer_count"} if waits else {"due"}
        return [name for name in super().get_list_display(request) if name not in without]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Message], search_term: str
    ) -> tuple[QuerySet[Message], bool]:
        """The message of an id; anything else finds nothing, for it would have to scan."""
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
            note_opening.note(
                base.actor(request), f"message:{row}", "body", "headers", team_id=team_id
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
        """The usual ones, and the body as a file."""
        download = self.admin_site.admin_view(self.download)
        own = path("<path:object_id>/body", download, name="channels_app_message_body")
        return [own, *super().get_urls()]

    def download(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The exact bytes as a file: never shown by the browser, whatever they are."""
        base.require(self.has_view_permission(request))
        message = self.get_object(request, object_id)
        if message is None:
            raise Http404("There is no such message.")
        base.require(body.may_see(request, message.channel))
        team_id = message.producer.team_id if message.producer else None
        note_opening.note(base.actor(request), f"message:{message}", "body", team_id=team_id)
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
        """Its state, its deliveries considered."""
        return base.label(message.shown, TONE[message.shown])

    @display(description="Accepted")
    def accepted(self, message: Message) -> str:
        """When its producer was told yes."""
        return base.instant(message.accepted_at)

    @display(description="Due")
    def due(self, message: Message) -> str:
        """When it may be sent first."""
        return base.instant(message.due_at)

    @display(description="Expires")
    def expires(self, message: Message) -> str:
        """When it is not to be sent any more."""
        return base.instant(message.expires_at)

    @display(description="Headers")
    def forwarded(self, message: Message) -> str:
        """The headers that go to consumers with it."""
        headers = data_encryption.headers_of(message)
        return base.mono(json.dumps(headers, ensure_ascii=False)) if headers else base.NONE

    @display(description="Size")
    def size(self, message: Message) -> str:
        """Bytes of its body."""
        return f"{message.body_bytes:,} B"


@admin.register(MessageBody)
class MessageBodyAdmin(base.BigList):
    """That bodies are stored and under which key; what is in them stands on the message's page."""

    id_prefix = ids.MESSAGE
    list_display = ("name", "size", "encrypted_by")
    list_fetched = ("message",)
    fields = ("name", "message", "size", "encrypted_by")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[MessageBody]:
        """Without the bytes."""
        return body.without_bytes(super().get_queryset(request))

    @display(description="Message")
    def name(self, row: MessageBody) -> str:
        """Its message's public id."""
        return base.public_id(ids.to_public(ids.MESSAGE, row.message_id))

    @display(description="Size")
    def size(self, row: MessageBody) -> str:
        """Bytes that the producer sent."""
        return f"{row.message.body_bytes:,} B"

    @display(description="Sealed by")
    def encrypted_by(self, row: MessageBody) -> str:
        """The id of the encryption key."""
        return body.protection(row)


@admin.register(IdempotencyRecord)
class IdempotencyRecordAdmin(base.BigList):
    """Idempotency keys that are taken."""

    list_display = ("digest", "message", "expires")
    search_fields = ("digest",)
    search_help_text = "SHA-256 of channel id:producer id:key"
    fields = ("digest", "message", "body_digest", "expires")
    readonly_fields = fields

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[IdempotencyRecord], search_term: str
    ) -> tuple[QuerySet[IdempotencyRecord], bool]:
        """The record of a digest."""
        term = search_term.strip()
        return (queryset.filter(pk=term) if term else queryset), False

    @display(description="Message")
    def message(self, record: IdempotencyRecord) -> str:
        """What the key stands for."""
        return base.public_id(ids.to_public(ids.MESSAGE, record.message_id))

    @display(description="Expires")
    def expires(self, record: IdempotencyRecord) -> str:
        """When the key is free again."""
        return base.instant(record.expires_at)
