"""Define the admin pages of consumers and their secrets."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import flatten_fieldsets
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.text import Truncator
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from channels_app.admin import base
from channels_app.admin.base import RowActions, action, dialog, display, pausing, resuming
from channels_app.admin.filters import RelatedDropdownFilter
from channels_app.admin.forms import ConsumerForm
from channels_app.core.errors import BrokerError
from channels_app.models import Consumer
from channels_app.registry import consumers, inbound_addresses, secrets
from channels_app.serializers.api_keys import DEFAULT_OVERLAP_S, MAX_OVERLAP_S
from channels_app.serializers.consumers import ConsumerSerializer

State = Consumer.State
TONE = {State.ACTIVE: "good", State.PAUSED: "wait", State.DISABLED: "bad", State.RETIRED: "calm"}

PAUSE = dialog(
    "Pause this consumer?", "Nothing is sent until it is resumed. New messages wait.", "Pause"
)
RESUME = dialog(
    "Resume this consumer?", "Waiting messages are sent, highest priority first.", "Resume"
)
SHORT = 40
"""Characters of an address in a list."""
LIVE = (State.ACTIVE, State.PAUSED, State.DISABLED)

RETIRE = dialog(
    "Retire this consumer?",
    "It gets no more messages, and its waiting deliveries are cancelled. Its history stays. "
    "Registering the same name again brings it back with a new secret.",
    "Retire",
)

RENEW = dialog(
    "Renew its provider's address?",
    "The current address stops working at once. Give the new one to the provider.",
    "Renew",
)


class RotateSecretsForm(base.ReasonForm):
    """For how long the old secrets keep signing."""

    overlap_s = forms.IntegerField(
        label="Overlap in seconds",
        min_value=0,
        max_value=MAX_OVERLAP_S,
        initial=DEFAULT_OVERLAP_S,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="How long old secrets keep signing; 0 revokes them now.",
    )


ROTATE = dialog("Create a new secret?", "It is shown once.", "Create secret", RotateSecretsForm)


@admin.register(Consumer)
class ConsumerAdmin(RowActions, base.ResourceAdmin):
    """Consumers: settings, pause and resume, secrets. Retired ones stay for their history."""

    form = ConsumerForm
    identity = ("channel", "client_id")
    list_display: tuple[str, ...] = (
        "client_id",
        "channel",
        "shown_state",
        "shown_health",
        "mode",
        "address",
        "team",
    )
    list_select_related = ("channel", "team", "health")
    list_filter: tuple[Any, ...] = (
        "state",
        "mode",
        ("channel", RelatedDropdownFilter),
        ("team", RelatedDropdownFilter),
    )
    search_fields = ("client_id", "url", "channel__slug")
    search_help_text = "client id, address or channel"
    autocomplete_fields = ("channel", "team", "dead_letter_channel")
    ordering = ("channel__slug", "client_id")
    actions = ("pause_selected", "resume_selected")
    action_form = base.ReasonActionForm
    actions_detail: tuple[str, ...] = (
        "see_deliveries",
        "see_audit",
        "pause",
        "resume",
        "rotate",
        "renew",
        "retire",
    )
    readonly_fields = (
        *("shown_state", "state_reason", "state_changed_at", "live_secrets", "inbound_address"),
    )
    fieldsets = (
        (None, {"fields": ("seen", "channel", "client_id", "description", "team")}),
        ("State", {"fields": (("shown_state", "state_changed_at"), "state_reason")}),
        ("Endpoint", {"fields": ("mode", "url", "event_types", "headers")}),
        ("Signing", {"fields": ("signing", "live_secrets")}),
        (
            "Delivery",
            {
                "fields": (
                    ("timeout_ms", "max_attempts"),
                    "retry",
                    "retry_overrides",
                    ("rate_per_second", "rate_burst"),
                    ("max_in_flight", "max_pumps"),
                    "http_version",
                    ("ordering", "head_of_line"),
                    "ack",
                    ("lapsed_leases", "dead_letter_channel"),
                    "inbound_address",
                )
            },
        ),
    )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """A new consumer has no state. Settings that have no place in the page come last."""
        sets = super().get_fieldsets(request, obj)
        placed = set(flatten_fieldsets(sets))
        columns = {field.name for field in Consumer._meta.concrete_fields}
        unplaced = [name for name in ConsumerSerializer.settings() if name in columns - placed]
        if unplaced:
            sets = [*sets, ("More", {"fields": unplaced})]
        return sets if obj else [part for part in sets if part[0] != "State"]

    def audit_target(self, obj: Consumer) -> str:
        """The name that the services use."""
        return f"consumer:{obj.channel.slug}/{obj.client_id}"

    @display(description="State", ordering="state")
    def shown_state(self, consumer: Consumer) -> str:
        """Its state as a coloured word."""
        return base.label(consumer.state, TONE[State(consumer.state)])

    @display(description="Health")
    def shown_health(self, consumer: Consumer) -> str:
        """Its health, with the words of the portal and the API."""
        return base.label(*consumer.condition[:2])

    @display(description="Address", ordering="url")
    def address(self, consumer: Consumer) -> str:
        """The address to which it is sent."""
        return base.mono(Truncator(consumer.url).chars(SHORT))

    @display(description="Live secrets")
    def live_secrets(self, consumer: Consumer) -> str:
        """The schemes of its secrets, never the secrets."""
        if not consumer.pk:
            return "A secret is created now and shown once."
        schemes = consumer.secrets.order_by("-id").values_list("scheme", flat=True)
        return ", ".join(schemes) or base.NONE

    @display(description="Inbound address")
    def inbound_address(self, consumer: Consumer) -> str:
        """The address that its provider calls back."""
        address = inbound_addresses.url(consumer)
        return base.mono(address) if address else base.NONE

    @action(description="Deliveries", icon="send", permissions=["view"])
    def see_deliveries(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Its deliveries, newest first."""
        url = reverse("admin:delivery_delivery_changelist")
        return redirect(f"{url}?consumer={object_id}")

    def has_pause_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Only active consumers can be paused."""
        return self.is_now(request, object_id, state=State.ACTIVE)

    def has_resume_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Only consumers that a person paused or the broker disabled can be resumed."""
        return self.is_now(request, object_id, state__in=(State.PAUSED, State.DISABLED))

    def has_live_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Only consumers that are not retired."""
        return self.is_now(request, object_id, state__in=LIVE)

    def has_called_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Only consumers with an address that their provider calls back."""
        return self.is_now(request, object_id, state__in=LIVE, inbound_digest__isnull=False)

    @pausing(PAUSE)
    def pause(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Stop sending to it."""
        return self._switch(request, form, object_id, consumers.pause, "is paused")

    @resuming(RESUME)
    def resume(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Send to it again."""
        return self._switch(request, form, object_id, consumers.resume, "is active")

    @action(
        description="Retire",
        icon="delete",
        permissions=["live"],
        dialog=RETIRE,
        variant=ActionVariant.DANGER,
    )
    def retire(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Unregister it."""
        return self._switch(request, form, object_id, consumers.retire, "is retired")

    @action(description="New secret", icon="key", permissions=["live"], dialog=ROTATE)
    def rotate(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Generate a secret and show it once."""
        consumer = Consumer.objects.select_related("channel").get(pk=object_id)
        try:
            done = secrets.rotate(
                consumer.channel.slug,
                consumer.client_id,
                {"overlap_s": form.cleaned_data["overlap_s"]},
                principal=base.principal(request, form.cleaned_data["reason"]),
            )
        except BrokerError as refused:
            messages.error(request, refused.detail)
            return base.leave_dialog(self.page_of(consumer.pk))
        return base.secret_dialog(request, f"New secret of {consumer.client_id}", done.secrets)

    @action(
        description="Renew provider's address",
        icon="sync",
        permissions=["called"],
        dialog=RENEW,
    )
    def renew(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Replace the inbound address; the former one stops at once."""
        done = "has another inbound address"
        return self._switch(request, form, object_id, inbound_addresses.renew, done)

    @admin.action(description="Pause", permissions=["operate"])
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[Consumer]) -> None:
        """Stop sending to those selected."""
        self._switch_all(request, queryset, consumers.pause, "paused")

    @admin.action(description="Resume", permissions=["operate"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Consumer]) -> None:
        """Send to those selected again."""
        self._switch_all(request, queryset, consumers.resume, "resumed")

    def _switch(
        self, request: HttpRequest, form: Any, object_id: str, step: Callable[..., Any], done: str
    ) -> HttpResponse:
        consumer = Consumer.objects.select_related("channel").get(pk=object_id)
        name = (consumer.channel.slug, consumer.client_id)
        return self.carry_out(
            request,
            form,
            object_id,
            lambda principal: step(*name, principal=principal),
            f"{consumer.client_id} {done}.",
        )

    def _switch_all(
        self,
        request: HttpRequest,
        queryset: QuerySet[Consumer],
        step: Callable[..., Any],
        done: str,
    ) -> None:
        reason = request.POST.get("reason", "")
        for consumer in queryset.select_related("channel"):
            with base.telling(request, f"{consumer.client_id} is {done}."):
                step(
                    consumer.channel.slug,
                    consumer.client_id,
                    principal=base.principal(request, reason),
                )
