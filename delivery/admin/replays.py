"""Define the admin pages of replays: preview, request, progress and stop."""

import json
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from django import forms
from django.contrib import admin
from django.db.models import Model
from django.forms import MediaDefiningClass
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.text import capfirst
from unfold.enums import ActionVariant
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from channels_app.access.principal import Principal
from channels_app.admin import base, filters
from channels_app.admin.base import RowActions, WithPageContext, action, dialog, display
from channels_app.core import ids, times
from channels_app.core.errors import BrokerError, Invalid
from channels_app.database import clock
from channels_app.models import Channel, Consumer
from delivery import replay
from delivery.core.lifecycle import FINISHED, DeliveryState
from delivery.models import Delivery, Replay
from delivery.replay import Count, ReplayFilter
from delivery.serializers.filters import ReplayPageSerializer
from delivery.serializers.requests import HIGHEST_RATE, LOWEST_RATE

TEMPLATE = "delivery/live.html"
State = Replay.State
TONE = {State.RUNNING: "busy", State.FINISHED: "good", State.CANCELLED: "calm"}
STOP = dialog("Stop this replay?", "Deliveries that are already queued are still sent.", "Stop it")
QUERY = ReplayPageSerializer()


class Step(Protocol):
    """A service that changes one row."""

    def __call__(self, number: int, principal: Principal, /, *, now: datetime) -> Any:
        """Change the row with this number."""


def of(object_id: str, step: Step) -> Callable[[Principal], Any]:
    """Return the step for this row, in the form for `RowActions.carry_out`."""
    return lambda principal: step(int(object_id), principal, now=clock.now())


class Stoppable(RowActions, base.ReadOnly):
    """A page with a stop button while its row is active."""

    open_states: Collection[str] = ()
    """States in which the row is active."""

    def is_open(self, row: Model) -> bool:
        """Whether the row is active."""
        return getattr(row, "state", None) in self.open_states

    def has_stop_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Whether the row is active."""
        return self.is_now(request, object_id, state__in=self.open_states)


def button(question: Any, success_message: str, cancel: Step) -> Callable[..., HttpResponse]:
    """Return a page's action ``stop``, which asks for a reason, stops the row and confirms it."""

    def stop(self: Any, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        done: HttpResponse = self.carry_out(
            request, form, object_id, of(object_id, cancel), success_message
        )
        return done

    decorated: Callable[..., HttpResponse] = action(
        description="Stop",
        icon="stop_circle",
        permissions=["stop"],
        dialog=question,
        variant=ActionVariant.DANGER,
    )(stop)
    return decorated


@dataclass(frozen=True, slots=True)
class Live:
    """Progress in text and as a bar."""

    heading: str
    note: str = ""
    """Text beside the heading."""
    done: int = 0
    most: int = 0
    """Maximum of the bar; 0 while it is unknown, and for no bar at the end."""
    counts: str = "Progress"
    """What the bar counts, for screen readers."""
    error: str = ""
    facts: tuple[tuple[str, Any], ...] = ()
    """Labels and values."""
    hint: str = ""
    """A hint or an instruction."""
    links: tuple[tuple[str, str], ...] = ()
    """Links: label and URL."""
    log: str = ""

    @property
    def formatted_facts(self) -> list[tuple[str, Any]]:
        """The facts with formatted numbers."""
        return [(name, f"{value:,}" if type(value) is int else value) for name, value in self.facts]


class AbstractPage(ABCMeta, MediaDefiningClass):
    """A metaclass with abstract methods, so that incomplete pages cannot be registered."""


class LivePage(WithPageContext, Stoppable, metaclass=AbstractPage):
    """A page whose upper part refreshes itself until the row has ended."""

    change_form_outer_before_template = TEMPLATE

    @abstractmethod
    def live(self, row: Any) -> Live:
        """The present progress."""

    def row_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Its progress."""
        return self._shown(row)

    def get_urls(self) -> list[URLPattern]:
        """Add the URL of the refreshed part."""
        view = self.admin_site.admin_view(self.progress_view)
        own = path("<path:object_id>/progress", view, name=self._name)
        return [own, *super().get_urls()]

    def progress_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Return the present progress; at the end reload the page, since its buttons change."""
        base.require(self.has_view_permission(request))
        row = self.get_object(request, object_id)
        if row is None:
            raise Http404(f"There is no such {self.opts.verbose_name}.")
        response = TemplateResponse(request, TEMPLATE, self._shown(row))
        if not self.is_open(row):
            response["HX-Refresh"] = "true"
        return response

    @property
    def _name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_progress"

    def _shown(self, row: Model) -> dict[str, Any]:
        return {
            "live": self.live(row),
            "is_open": self.is_open(row),
            "live_url": reverse(f"admin:{self._name}", args=[row.pk]),
        }


@admin.register(Replay)
class ReplayAdmin(LivePage, base.BigList):
    """Replays. The list of deliveries and the API create them."""

    id_prefix = ids.REPLAY
    list_display = ("name", "created", "state_now", "progress", "requested_by", "reason")
    list_filter = ("state",)
    search_fields = ("id",)
    search_help_text = "rpl_… (the whole id)"
    actions_detail = ("see_audit", "stop")
    fields = (
        ("name", "state_now"),
        ("requested_by", "reason"),
        ("progress", "rate_per_second"),
        ("created", "finished"),
        "asked",
    )
    readonly_fields = ("name", "state_now", "progress", "created", "finished", "asked")
    open_states = (State.RUNNING,)

    def live(self, row: Replay) -> Live:
        """Its progress."""
        if row.state == State.RUNNING:
            hint, heading = "", "Queueing"
            if rate := row.rate_per_second:
                hint = f"At most {rate:g} per second are sent; a minute's worth is queued ahead."
        else:
            hint, heading = "", "Stopped" if row.state == State.CANCELLED else "Done"
        skipped = max(0, row.matched_count - row.replayed_count)
        if row.state == State.FINISHED and skipped:
            hint = "The skipped ones had changed meanwhile or had expired."
        return Live(
            heading,
            f"{row.replayed_count:,} of {row.matched_count:,} are queued again",
            row.replayed_count,
            # The matched count was taken at the creation; more may match since.
            max(row.total_count, 1),
            "Queued again",
            facts=()
            if row.state == State.RUNNING
            else (
                ("Matched", row.matched_count),
                ("Queued again", row.replayed_count),
                ("Skipped", skipped),
            ),
            hint=hint,
            links=tuple(_links(row.conditions)),
        )

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """Find the replay of an id."""
        term = search_term.strip().lower()
        if not term:
            return queryset, False
        number = ids.from_public(ids.REPLAY, term)
        return (queryset.filter(pk=number) if number else queryset.none()), False

    def audit_target(self, obj: Replay) -> str:
        """Its name in the audit log."""
        return f"replay:{obj}"

    stop = button(STOP, "The replay is stopped.", replay.cancel)

    @display(description="Replay")
    def name(self, row: Replay) -> str:
        """Its public id."""
        return base.public_id(str(row))

    @display(description="State")
    def state_now(self, row: Replay) -> str:
        """Its state in colour."""
        return base.label(row.state, TONE[State(row.state)])

    @display(description="Replayed of matched")
    def progress(self, row: Replay) -> str:
        """Its progress."""
        return f"{row.replayed_count:,} of {row.matched_count:,}"

    @display(description="Requested at")
    def created(self, row: Replay) -> str:
        """When it was created."""
        return base.instant(row.created_at)

    @display(description="Ended at")
    def finished(self, row: Replay) -> str:
        """When it had processed all matching deliveries."""
        return base.instant(row.finished_at)

    @display(description="Filter")
    def asked(self, row: Replay) -> str:
        """Its filter."""
        return base.mono(json.dumps(row.conditions, ensure_ascii=False))


class Wanted(forms.Form):
    """The filter of a replay; its fields have the names of the list's filters, to share URLs."""

    channel = forms.ModelChoiceField(
        Channel.objects.order_by("slug"), widget=UnfoldAdminSelectWidget, empty_label="Choose one"
    )
    consumer = forms.ModelChoiceField(
        Consumer.objects.none(),
        required=False,
        widget=UnfoldAdminSelectWidget,
        empty_label="Any",
        help_text="Lists the channel's consumers after you count.",
    )

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        channel = str(data.get("channel", ""))
        if channel.isdecimal():
            theirs = Consumer.objects.filter(channel_id=channel)
            self.fields["consumer"].queryset = theirs.order_by("client_id")  # type: ignore[attr-defined]  # of rows
            self.fields["consumer"].help_text = ""
        for name, described in QUERY.fields.items():
            self.fields[name] = _field(described)

    def clean(self) -> None:
        """Check the filter as the API does."""
        try:
            self._values = QUERY.read(QUERY.given(self.cleaned_data))
        except Invalid as bad:
            for fault in bad.faults:
                self.add_error(fault.field, fault.detail)

    def wanted(self) -> ReplayFilter:
        """Return the filter."""
        channel, consumer = self.cleaned_data["channel"], self.cleaned_data["consumer"]
        client_id = consumer.client_id if consumer else ""
        return ReplayFilter.of(self._values).within(channel.slug, client_id)


class How(forms.Form):
    """Rate and reason of the replay."""

    rate_per_second = forms.FloatField(
        label="Maximum per second",
        required=False,
        min_value=LOWEST_RATE,
        max_value=HIGHEST_RATE,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Empty: as fast as the consumer takes them.",
    )
    reason = forms.CharField(
        required=False,
        max_length=500,
        widget=UnfoldAdminTextInputWidget,
        help_text="For the audit log.",
    )


@dataclass(frozen=True, slots=True)
class Preview:
    """What the replay would do."""

    filter: str
    """The counted filter as JSON. The replay uses it, whatever was typed since."""
    count: Count
    sample: list[Delivery]


def page(admin: base.AdminPage, request: HttpRequest) -> HttpResponse:
    """Ask for a filter, show the count and, once confirmed, redirect to the replay's page."""
    base.require(admin.has_operate_permission(request))
    how = How(request.POST or None)
    refused = ""
    if request.method == "POST" and how.is_valid():
        try:
            return _begin(request, how)
        except (BrokerError, ValueError) as error:
            refused = getattr(error, "detail", "The filter is not valid. Count again.")
    given = _given(request)
    wanted = Wanted(given)
    preview = None
    if given.get("channel") and wanted.is_valid():
        try:
            preview = preview_of(wanted.wanted(), base.principal(request), clock.now())
        except BrokerError as error:
            refused = refused or error.detail
    elif not given.get("channel"):
        wanted.errors.clear()
    context = admin.admin_site.each_context(request) | {
        "title": "Replay all that match",
        "opts": admin.opts,
        "wanted": wanted,
        "how": how,
        "preview": preview,
        "refused": refused,
    }
    return TemplateResponse(request, "delivery/matching.html", context)


def preview_of(wanted: ReplayFilter, principal: Principal, now: datetime) -> Preview:
    """Count the matching deliveries."""
    consumers = replay.consumers_of(wanted, principal)
    return Preview(
        json.dumps(wanted.to_json()),
        replay.count(wanted, consumers, now),
        replay.sample(wanted, consumers, now),
    )


def _links(wanted: dict[str, Any]) -> list[tuple[str, str]]:
    """Return links to the deliveries of the same channel or consumer."""
    channel = Channel.objects.filter(slug=wanted.get("channel", "")).first()
    if channel is None:
        return []
    chosen = f"channel={channel.pk}"
    name = wanted.get("consumer", "")
    consumer = Consumer.objects.filter(channel=channel, client_id=name).first() if name else None
    if consumer is not None:
        chosen += f"&consumer={consumer.pk}"
    place = f"{reverse('admin:delivery_delivery_changelist')}?{chosen}"
    titles = {"dead": "Still dead", "queued": "Waiting now", "delivered": "Delivered"}
    return [(title, f"{place}&state={state}") for state, title in titles.items()]


def _field(described: Any) -> forms.Field:
    widget: forms.Widget = UnfoldAdminTextInputWidget()
    if words := getattr(described, "choices", ()):
        choices = [] if described.has_default else [("", "Any")]
        choices += [(word, capfirst(word.replace("_", " "))) for word in words]
        widget = UnfoldAdminSelectWidget(choices=choices)
    return forms.CharField(required=False, help_text=described.help_text or "", widget=widget)


def _begin(request: HttpRequest, how: How) -> HttpResponse:
    wanted = replay.parse(json.loads(request.POST.get("filter", "")))
    principal = base.principal(request, how.cleaned_data["reason"])
    created = replay.create(
        wanted,
        replay.consumers_of(wanted, principal),
        principal,
        now=clock.now(),
        rate_per_second=how.cleaned_data["rate_per_second"],
    )
    return redirect(reverse("admin:delivery_replay_change", args=[created.pk]))


def _given(request: HttpRequest) -> dict[str, str]:
    """Return the parameters of the URL, in the form that this page uses."""
    given: dict[str, str] = {"state": DeliveryState.DEAD.value, **request.GET.dict()}
    if given["state"] not in list(FINISHED):
        given["state"] = DeliveryState.DEAD.value
    consumer, term = given.get("consumer", ""), given.get("q", "")
    if not given.get("channel"):
        named = Consumer.objects.none()
        if consumer.isdecimal():
            named = Consumer.objects.filter(pk=consumer)
        elif term:
            named = Consumer.objects.filter(client_id=term)
        rows = list(named.values_list("channel_id", "pk")[:2])
        if len(rows) == 1:
            given["channel"], given["consumer"] = map(str, rows[0])
    if first := filters.first_id(given.get("since")):
        since = datetime.fromtimestamp(ids.created_ms(first) / 1000, tz=clock.now().tzinfo)
        given.setdefault("from", times.text(since))
    return given
