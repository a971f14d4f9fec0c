"""Show ordering keys in the console, with buttons to pause, resume and skip."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from unfold.enums import ActionVariant

from channels_app.access.principal import Principal
from channels_app.admin import base
from channels_app.admin.base import RowActions, WithPageContext, action, dialog, display, resuming
from channels_app.core import ids
from channels_app.models import Consumer
from delivery.admin.replays import of
from delivery.core.ordering import key_number
from delivery.models import Delivery, OrderingKey, OrderingWaiter
from delivery.ordering import hot_keys
from delivery.queue import ordering_keys

PAUSE = dialog(
    "Pause this key?", "A delivery in flight still ends. No further ones are sent.", "Pause"
)
RESUME = dialog("Resume this key?", "Its next delivery is sent at once.", "Resume")
SHORT = 60
"""Characters of a key in a list."""
WAITING_SHOWN = 25
"""Deliveries behind the head on a page."""
MAX_PLACE_DIGITS = 19


class SkipForm(base.ReasonForm):
    """A reason, with the head shown by the form, since it may change before the submission."""

    head = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        key_row = OrderingKey.objects.filter(pk=self.object_id).first()
        self.initial["head"] = key_row.head_id if key_row else None


SKIP = dialog(
    "Skip the head?",
    "A dead head stays dead, a waiting head is cancelled. The next delivery is sent.",
    "Skip",
    SkipForm,
)


def state_of(key_row: OrderingKey) -> SafeString:
    """Return whether it is open, blocked or paused, in colour."""
    tones = {"paused": "wait", "blocked": "bad", "open": "good"}
    return base.label(key_row.state, tones[key_row.state])


def url_of(delivery: Delivery) -> str:
    """Return the URL of its ordering key's page while that exists; '' for an unordered delivery."""
    key = delivery.message.ordering_key
    number = key_number(delivery.consumer_id, key) if key else 0
    if not key or not OrderingKey.objects.filter(pk=number).exists():
        return ""
    return reverse("admin:delivery_orderingkey_change", args=[number])


@admin.register(OrderingKey)
class OrderingKeyAdmin(WithPageContext, RowActions, base.BigList):
    """Ordering keys with unfinished deliveries."""

    id_prefix = ids.ORDERING_KEY
    list_before_template = "delivery/ordering_keys_top.html"
    change_form_outer_before_template = "delivery/ordering_key.html"
    list_fetched = ("consumer__channel",)
    list_display = ("key_short", "route", "state_now", "waiting", "head", "stands")
    list_filter = (
        ("paused_at", admin.EmptyFieldListFilter),
        ("blocked_at", admin.EmptyFieldListFilter),
    )
    search_fields = ("id",)
    search_help_text = "channel/consumer, channel/consumer/key, or dlv_… behind a head"
    actions_detail = ("see_audit", "pause", "resume", "skip")
    change_form_outer_after_template = "delivery/ordering_key_waiting.html"
    fields = (("key", "route"), ("state_now", "waiting"), ("head", "stands"), "most")
    readonly_fields = ("key", "route", "state_now", "waiting", "head", "stands", "most")

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """A hint for an empty list, and the hot keys."""
        return {"none": not OrderingKey.objects.exists(), "hot": hot_keys.backlogs()}

    def row_context(self, request: HttpRequest, row: OrderingKey) -> dict[str, Any]:
        """The deliveries behind the head, from a place on."""
        text = request.GET.get("after", "")
        after = int(text) if text.isdecimal() and len(text) < MAX_PLACE_DIGITS else 0
        rows = OrderingWaiter.objects.filter(key_number=row.pk, place__gt=after).order_by("place")
        waiters = list(rows[: WAITING_SHOWN + 1])
        return {
            "waiting": [
                (waiter, ids.to_public(ids.DELIVERY, waiter.delivery_id))
                for waiter in waiters[:WAITING_SHOWN]
            ],
            "after": after,
            "has_more": len(waiters) > WAITING_SHOWN,
        }

    def get_ordering(self, request: HttpRequest) -> Sequence[str]:
        """Sort one consumer's keys by how long their heads have waited."""
        return ("head_at",) if self._named(request.GET.get("q", "")) else ("pk",)

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """Find the keys of a consumer, one of them, or the key that a delivery waits for."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if (number := ids.from_public(ids.DELIVERY, term.lower())) is not None:
            waiter = OrderingWaiter.objects.filter(pk=number).first()
            return queryset.filter(pk=waiter.key_number if waiter else 0), False
        named = self._named(term)
        if named is None:
            return queryset.none(), False
        consumer, key = named
        if key:
            return queryset.filter(pk=key_number(consumer.pk, key)), False
        return queryset.filter(consumer_id=consumer.pk), False

    def audit_target(self, obj: OrderingKey) -> str:
        """Its name in the audit log."""
        return f"consumer:{obj.consumer.channel.slug}/{obj.consumer.client_id}"

    def has_pause_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Whether the key is not paused."""
        return self.is_now(request, object_id, paused_at=None)

    def has_resume_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Whether the key is paused."""
        return self.is_now(request, object_id, paused_at__isnull=False)

    def has_skip_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Whether the key has a head."""
        return self.is_now(request, object_id, head_id__isnull=False)

    @action(description="Pause", icon="pause", permissions=["pause"], dialog=PAUSE)
    def pause(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Pause the key."""
        return self.carry_out(
            request, form, object_id, of(object_id, ordering_keys.pause), "The key is paused."
        )

    @resuming(RESUME)
    def resume(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Resume the key."""
        return self.carry_out(
            request, form, object_id, of(object_id, ordering_keys.resume), "The key is resumed."
        )

    @action(
        description="Skip the head",
        icon="skip_next",
        permissions=["skip"],
        dialog=SKIP,
        variant=ActionVariant.DANGER,
    )
    def skip(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Skip the head that the form showed, unless it has changed."""
        head_id = form.cleaned_data["head"] or 0

        def step(number: int, principal: Principal, *, now: datetime) -> object:
            return ordering_keys.skip(number, head_id, principal, now=now)

        return self.carry_out(request, form, object_id, of(object_id, step), "The head is skipped.")

    @display(description="Ordering key")
    def key(self, key_row: OrderingKey) -> str:
        """The ordering key of its messages."""
        return base.mono(key_row.ordering_key)

    @display(description="Ordering key")
    def key_short(self, key_row: OrderingKey) -> str:
        """The same in a narrow column."""
        return base.mono(Truncator(key_row.ordering_key).chars(SHORT))

    @display(description="Channel / consumer")
    def route(self, key_row: OrderingKey) -> str:
        """Link to its consumer."""
        url = reverse("admin:channels_app_consumer_change", args=[key_row.consumer_id])
        return base.linked(url, f"{key_row.consumer.channel.slug} / {key_row.consumer.client_id}")

    @display(description="State")
    def state_now(self, key_row: OrderingKey) -> str:
        """Whether it is open, blocked or paused."""
        return state_of(key_row)

    @display(description="Waiting")
    def waiting(self, key_row: OrderingKey) -> str:
        """Link to the deliveries behind the head, with their number."""
        if not key_row.waiting_count:
            return "0"
        return base.linked(f"{self.page_of(key_row.pk)}#waiting", f"{key_row.waiting_count:,}")

    @display(description="Head")
    def head(self, key_row: OrderingKey) -> str:
        """Link to the delivery that may be sent."""
        if key_row.head_id is None:
            return base.NONE
        url = reverse("admin:delivery_delivery_change", args=[key_row.head_id])
        return base.linked(url, ids.to_public(ids.DELIVERY, key_row.head_id))

    @display(description="At most")
    def most(self, key_row: OrderingKey) -> str:
        """Maximum rate of one key of this consumer."""
        per_second = hot_keys.most_per_second(key_row.consumer_id)
        if per_second is None:
            return "1 / response time; known after the first delivery"
        return f"about {per_second:,.3g} per second: one at a time; more keys allow more"

    @display(description="Head since")
    def stands(self, key_row: OrderingKey) -> str:
        """Since when its head has been the head."""
        return base.instant(key_row.head_at, exact=False)

    def _named(self, term: str) -> tuple[Consumer, str] | None:
        """Return the consumer of a search term, with the key if the term has one."""
        slug, _, rest = term.strip().partition("/")
        client_id, _, key = rest.partition("/")
        consumers = Consumer.objects.filter(channel__slug=slug, client_id=client_id)
        consumer = consumers.first()
        return (consumer, key) if consumer else None
