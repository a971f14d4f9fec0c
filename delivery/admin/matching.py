"""Replay all deliveries that match a filter, with a count to confirm first."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from channels_app import clock
from channels_app.admin import base, choices
from channels_app.errors import BrokerError
from channels_app.models import Channel, Consumer
from channels_app.rules import ids, times
from delivery.models import Delivery
from delivery.rules.lifecycle import FINISHED, DeliveryState
from delivery.rules.outcome import Outcome
from delivery.rules.principal import Principal
from delivery.steps import replay
from delivery.steps.replay import HIGHEST_STATUS, LOWEST_STATUS, Count, ReplayFilter

SLOWEST, FASTEST = 0.001, 10_000.0
ANY = ("", "Any")


def instant_field(label: str) -> forms.CharField:
    """Return a field for an instant in the API's format."""
    widget = UnfoldAdminTextInputWidget({"placeholder": "2026-01-31T08:00:00Z"})
    return forms.CharField(label=label, required=False, widget=widget)


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
    state = forms.ChoiceField(
        choices=[(state.value, state.value.capitalize()) for state in sorted(FINISHED)],
        widget=UnfoldAdminSelectWidget,
    )
    outcome = forms.ChoiceField(
        label="Last outcome",
        choices=[ANY, *((outcome.value, outcome.value.replace("_", " ")) for outcome in Outcome)],
        required=False,
        widget=UnfoldAdminSelectWidget,
    )
    status = forms.IntegerField(
        label="Status code",
        required=False,
        min_value=LOWEST_STATUS,
        max_value=HIGHEST_STATUS,
        widget=UnfoldAdminIntegerFieldWidget({"placeholder": "503"}),
    )
    event_type = forms.CharField(required=False, widget=UnfoldAdminTextInputWidget)
    begins = instant_field("Accepted from")
    ends = instant_field("Accepted before")

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        channel = str(data.get("channel", ""))
        if channel.isdecimal():
            theirs = Consumer.objects.filter(channel_id=channel)
            self.fields["consumer"].queryset = theirs.order_by("client_id")  # type: ignore[attr-defined]  # of rows
            self.fields["consumer"].help_text = ""

    def wanted(self) -> ReplayFilter:
        """Return the filter for the step. Raises Invalid."""
        values = self.cleaned_data
        consumer = values["consumer"]
        form = {
            "channel": values["channel"].slug,
            "consumer": consumer.client_id if consumer else None,
            "states": [values["state"]],
            "outcomes": [values["outcome"]] if values["outcome"] else None,
            "status_codes": [values["status"]] if values["status"] else None,
            "event_types": [values["event_type"]] if values["event_type"] else None,
            "from": values["begins"] or None,
            "to": values["ends"] or None,
        }
        return replay.parse(form)


class How(forms.Form):
    """Rate and reason of the replay."""

    rate_per_second = forms.FloatField(
        label="Maximum per second",
        required=False,
        min_value=SLOWEST,
        max_value=FASTEST,
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


def page(admin: base.Page, request: HttpRequest) -> HttpResponse:
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
            preview = preview_of(wanted.wanted(), clock.now())
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


def preview_of(wanted: ReplayFilter, now: datetime) -> Preview:
    """Count the matching deliveries."""
    consumers = replay.consumers_of(wanted)
    return Preview(
        json.dumps(wanted.to_json()),
        replay.count(wanted, consumers, now),
        replay.sample(wanted, consumers, now),
    )


def _begin(request: HttpRequest, how: How) -> HttpResponse:
    wanted = replay.parse(json.loads(request.POST.get("filter", "")))
    made = replay.create(
        wanted,
        replay.consumers_of(wanted),
        Principal(base.actor(request), how.cleaned_data["reason"]),
        now=clock.now(),
        rate_per_second=how.cleaned_data["rate_per_second"],
    )
    return redirect(reverse("admin:delivery_replay_change", args=[made.pk]))


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
    if first := choices.first_id(given.get("since")):
        since = datetime.fromtimestamp(ids.created_ms(first) / 1000, tz=clock.now().tzinfo)
        given.setdefault("begins", times.text(since))
    return given
