"""Define the admin pages of producers, their API keys and their sequence numbers."""

from dataclasses import replace
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.text import Truncator
from unfold.enums import ActionVariant
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldBooleanSwitchWidget,
)

from channels_app.access.principal import Principal
from channels_app.admin import base, granting
from channels_app.admin.base import WithPageContext, action, dialog, display
from channels_app.admin.filters import DropdownFilter, RelatedDropdownFilter
from channels_app.admin.forms import LinesField, ProducerForm, ShowsFieldErrors
from channels_app.core import keys, times
from channels_app.core.errors import BrokerError
from channels_app.database import clock
from channels_app.models import (
    ApiKey,
    Channel,
    PendingSequenceNumber,
    Producer,
    Sequence,
)
from channels_app.registry import api_keys
from channels_app.registry.resource import WriteResult
from channels_app.serializers.api_keys import DEFAULT_OVERLAP_S, MAX_OVERLAP_S

SCOPES = [(scope, scope) for scope in keys.SCOPES]
GIVEN = ("label", "scopes", "channels", "all_channels", "sigv4")
"""Form fields that are passed on unchanged."""
REVOKE = dialog(
    "Revoke this key?", "Every process refuses it within a second. This cannot be undone.", "Revoke"
)
SHORT = 60
"""Characters of an ordering key in a list."""
MAX_SHOWN = 20
"""Early numbers on a page."""


@admin.register(Producer)
class ProducerAdmin(base.ResourceAdmin):
    """Producers with their limits."""

    form = ProducerForm
    identity = ("slug",)
    list_display = ("slug", "state", "team", "max_priority", "rate_per_second", "description")
    list_select_related = ("team",)
    list_filter = ("disabled", ("team", RelatedDropdownFilter))
    search_fields = ("slug", "description")
    autocomplete_fields = ("team",)
    ordering = ("slug",)
    actions_detail = ("see_audit",)
    readonly_fields = ("created_at", "updated_at")
    fieldsets = (
        (None, {"fields": ("seen", "slug", "description", "team", "disabled", "reason")}),
        (
            "Limits",
            {
                "fields": (
                    ("default_priority", "max_priority"),
                    ("rate_per_second", "rate_burst"),
                )
            },
        ),
        ("History", {"fields": (("created_at", "updated_at"),)}),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Make the team read-only without rights to keys: a team creates keys of its producers."""
        needs = ("channels_app.add_apikey", "channels_app.change_apikey")
        fixed = ("team",) if granting.lacking(request.user, needs) else ()
        return (*super().get_readonly_fields(request, obj), *fixed)

    def audit_target(self, obj: Producer) -> str:
        """The name that register_producer uses."""
        return f"producer:{obj.slug}"

    @display(description="State")
    def state(self, producer: Producer) -> str:
        """Whether it may publish."""
        if producer.disabled:
            return base.label("disabled", "bad")
        return base.label("active", "good")


class ApiKeyForm(ShowsFieldErrors):
    """A new key; afterwards it can only be rotated or revoked."""

    scopes = forms.MultipleChoiceField(
        choices=SCOPES, initial=["publish"], widget=UnfoldAdminCheckboxSelectMultipleWidget
    )
    channels = LinesField(
        help_text="Channels that it may use, one per line. A team's key may use external "
        "channels without listing them."
    )
    all_channels = forms.BooleanField(
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="Every channel, including future ones. An admin key needs this.",
    )
    sigv4 = forms.BooleanField(
        label="Also for SQS clients (AWS Signature V4)",
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="Adds an access key pair for AWS SDKs.",
    )
    granted_by: ClassVar[Any] = None
    """The user who creates the key."""

    class Meta:
        model = ApiKey
        fields = ("label", "producer", "team", "scopes", "channels", "expires_at")

    def clean(self) -> dict[str, Any] | None:
        """Check that the user may grant the scopes, and that there is at most one owner."""
        cleaned = super().clean()
        scopes = granting.scopes_lacking(self.granted_by, self.cleaned_data.get("scopes", ()))
        if scopes:
            text = f"You may not grant {', '.join(scopes)}: you do not have these rights yourself."
            self.add_error("scopes", text)
        if self.cleaned_data.get("producer") and self.cleaned_data.get("team"):
            raise ValidationError("Choose a producer or a team, not both.")
        return cleaned

    def write(self, principal: Principal) -> WriteResult[ApiKey]:
        """Create the key."""
        producer, team = self.cleaned_data.get("producer"), self.cleaned_data.get("team")
        created = api_keys.create(
            self._values(),
            principal=principal,
            producer=producer.slug if producer else None,
            team=team.slug if team else None,
        )
        return replace(created, secrets=api_keys.Shown(*created.secrets).lines)

    def _values(self) -> dict[str, Any]:
        ends = self.cleaned_data.get("expires_at")
        return {
            **{name: self.cleaned_data[name] for name in GIVEN},
            "expires_at": times.text(ends) if ends else None,
        }


class RotateKeyForm(base.ReasonForm):
    """For how long the old key keeps working."""

    overlap_s = forms.IntegerField(
        label="Overlap in seconds",
        min_value=0,
        max_value=MAX_OVERLAP_S,
        initial=DEFAULT_OVERLAP_S,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="How long the old key keeps working; 0 ends it now.",
    )


ROTATE = dialog(
    "Rotate this key?",
    "The new key has the same rights and is shown once.",
    "Rotate",
    RotateKeyForm,
)


@admin.register(ApiKey)
class ApiKeyAdmin(base.ResourceAdmin):
    """API keys: created, shown once, rotated, revoked. Their digests are not shown."""

    form = ApiKeyForm
    list_display = ("name", "label", "state", "producer", "team", "rights", "used", "ends")
    list_select_related = ("producer", "team")
    list_filter = (("producer", RelatedDropdownFilter), ("team", RelatedDropdownFilter))
    search_fields = ("key_id", "label", "producer__slug", "team__slug")
    search_help_text = "key id, label or owner"
    autocomplete_fields = ("producer", "team")
    ordering = ("-id",)
    actions_detail = ("see_audit", "rotate", "revoke")
    fieldsets = (
        (None, {"fields": ("label", ("producer", "team"))}),
        ("Rights", {"fields": ("scopes", "channels", "all_channels", "sigv4", "expires_at")}),
    )
    shown = (
        "name",
        "state",
        "label",
        "producer",
        "team",
        "rights",
        "reach",
        "signs",
        "ends",
        "used",
        "made",
    )

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Keys cannot be edited, since their owner would not notice."""
        return False

    def get_form(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """The form class, with the user who creates the key."""
        form = super().get_form(request, *args, **kwargs)
        form.granted_by = request.user
        return form

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Fields of the form for a new key, or the properties of an existing one."""
        return ((None, {"fields": self.shown}),) if obj else self.fieldsets

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """All fields of an existing key."""
        return self.shown if obj else ()

    def audit_target(self, obj: ApiKey) -> str:
        """The name that registry/api_keys.py uses."""
        return f"key:{obj.key_id}"

    @display(description="Key")
    def name(self, key: ApiKey) -> str:
        """Its beginning; the rest was only shown at creation."""
        return base.public_id(f"hsk_{key.key_id}_…")

    @display(description="State")
    def state(self, key: ApiKey) -> str:
        """Whether it is still valid."""
        if key.revoked_at:
            return base.label("revoked", "bad")
        if key.expires_at and key.expires_at <= clock.now():
            return base.label("expired", "calm")
        return base.label("valid", "good")

    @display(description="Rights")
    def rights(self, key: ApiKey) -> str:
        """Its scopes."""
        return ", ".join(key.scopes)

    @display(description="Channels")
    def reach(self, key: ApiKey) -> str:
        """The channels that it may use."""
        if key.reaches_all:
            return "all, including future ones"
        return ", ".join(key.channels) or "the external ones"

    @display(description="For SQS clients", boolean=True)
    def signs(self, key: ApiKey) -> bool:
        """Whether it has a secret for AWS Signature Version 4."""
        return key.has_sigv4

    @display(description="Made", ordering="created_at")
    def made(self, key: ApiKey) -> str:
        """When it was created."""
        return base.instant(key.created_at)

    @display(description="Last used", ordering="last_used_at")
    def used(self, key: ApiKey) -> str:
        """When it was last used, to about a minute."""
        return base.instant(key.last_used_at)

    @display(description="Expires", ordering="expires_at")
    def ends(self, key: ApiKey) -> str:
        """When it expires."""
        return base.instant(key.expires_at)

    def has_live_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Only keys that are not revoked."""
        if not self.has_operate_permission(request):
            return False
        return not object_id or ApiKey.objects.filter(pk=object_id, revoked_at=None).exists()

    def has_given_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Only keys that are not revoked, with rights that the user has: the new key is shown."""
        if not self.has_live_permission(request, object_id):
            return False
        key = ApiKey.objects.filter(pk=object_id).first() if object_id else None
        return key is None or not granting.scopes_lacking(request.user, key.scopes)

    @action(description="Rotate", icon="autorenew", permissions=["given"], dialog=ROTATE)
    def rotate(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Create a successor and show it once."""
        key = ApiKey.objects.get(pk=object_id)
        try:
            done = api_keys.rotate(
                key.key_id,
                {"overlap_s": form.cleaned_data["overlap_s"]},
                principal=base.principal(request, form.cleaned_data["reason"]),
            )
        except BrokerError as refused:
            messages.error(request, refused.detail)
            return base.leave_dialog(self.page_of(key.pk))
        lines = api_keys.Shown(*done.secrets).lines
        return base.secret_dialog(request, f"Successor of {key}", lines)

    @action(
        description="Revoke",
        icon="block",
        permissions=["live"],
        dialog=REVOKE,
        variant=ActionVariant.DANGER,
    )
    def revoke(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Revoke it."""
        key = ApiKey.objects.get(pk=object_id)
        with base.telling(request, f"{key} is revoked."):
            api_keys.revoke(
                key.key_id, principal=base.principal(request, form.cleaned_data["reason"])
            )
        return base.leave_dialog(self.page_of(key.pk))


class EarlyNumbersFilter(DropdownFilter):
    """Sequences with early numbers, which are few: each belongs to an open request."""

    title = "early numbers"
    parameter_name = "early"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Only those with some."""
        return [("yes", "Waiting")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Those that wait for a lower number."""
        if not self.value():
            return queryset
        keys = _waiting().values_list("sequence_id", flat=True).distinct()
        return queryset.filter(pk__in=list(keys[: base.WINDOW]))


@admin.register(Sequence)
class SequenceAdmin(WithPageContext, base.BigList):
    """Ordering keys whose messages a producer numbers."""

    list_before_template = "channels_app/sequences_top.html"
    change_form_outer_after_template = "channels_app/waiting_numbers.html"
    list_filter = (EarlyNumbersFilter,)
    list_fetched = ("channel", "producer")
    list_display = ("key_short", "channel_name", "producer_name", "due", "skipped", "heard")
    search_fields = ("id",)
    search_help_text = "name of a channel"
    fields = (
        ("key", "restarts"),
        ("channel_name", "producer_name"),
        ("due", "heard"),
        ("skipped", "gap"),
        "gap_at",
    )
    readonly_fields = (
        *("key", "restarts", "channel_name", "producer_name"),
        *("due", "skipped", "gap", "gap_at", "heard"),
    )

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """Whether to show what to do while there are no sequences."""
        return {"none": not Sequence.objects.exists()}

    def row_context(self, request: HttpRequest, row: Sequence) -> dict[str, Any]:
        """The numbers that arrived early."""
        rows = _waiting().filter(sequence_id=row.pk).order_by("number")
        return {"numbers": Paginator(rows, MAX_SHOWN).get_page(request.GET.get("numbers"))}

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """Sequences of a channel."""
        term = search_term.strip()
        if not term:
            return queryset, False
        channel = Channel.objects.filter(slug=term).first()
        return (queryset.filter(channel_id=channel.pk) if channel else queryset.none()), False

    @display(description="Ordering key")
    def key(self, row: Sequence) -> str:
        """The ordering key of its messages."""
        return base.mono(row.ordering_key)

    @display(description="Ordering key")
    def key_short(self, row: Sequence) -> str:
        """The ordering key, shortened."""
        return base.mono(Truncator(row.ordering_key).chars(SHORT))

    @display(description="Channel")
    def channel_name(self, row: Sequence) -> str:
        """Link to the channel."""
        url = reverse("admin:channels_app_channel_change", args=[row.channel_id])
        return base.linked(url, row.channel.slug)

    @display(description="Producer")
    def producer_name(self, row: Sequence) -> str:
        """Link to the producer."""
        if row.producer is None:
            return base.NONE
        url = reverse("admin:channels_app_producer_change", args=[row.producer_id])
        return base.linked(url, str(row.producer))

    @display(description="Expected next")
    def due(self, row: Sequence) -> str:
        """The number expected next."""
        return f"{row.expected:,}"

    @display(description="Restarted")
    def restarts(self, row: Sequence) -> str:
        """How many times its producer sent a 0."""
        return f"{row.epoch:,}"

    @display(description="Skipped")
    def skipped(self, row: Sequence) -> str:
        """How many numbers were skipped."""
        return f"{row.skipped_count:,}"

    @display(description="Last gap")
    def gap(self, row: Sequence) -> str:
        """The numbers that were skipped last."""
        if row.skipped_from is None or row.skipped_to is None:
            return base.NONE
        many = f" to {row.skipped_to:,}" if row.skipped_to > row.skipped_from else ""
        return f"{row.skipped_from:,}{many}"

    @display(description="Skipped at")
    def gap_at(self, row: Sequence) -> str:
        """When the last gap was skipped."""
        return base.instant(row.skipped_at)

    @display(description="Last message")
    def heard(self, row: Sequence) -> str:
        """When the last number arrived."""
        return base.instant(row.touched_at, exact=False)


def _waiting() -> QuerySet[PendingSequenceNumber]:
    """Early numbers whose requests wait."""
    return PendingSequenceNumber.objects.filter(until__gt=clock.now())
