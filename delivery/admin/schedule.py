"""Define the admin pages of schedules and the form that edits them."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.dateparse import parse_date, parse_time
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from channels_app.access.principal import Principal
from channels_app.admin import base, body
from channels_app.admin.base import (
    RowActions,
    WithPageContext,
    action,
    dialog,
    display,
    pausing,
    resuming,
)
from channels_app.admin.filters import ChoicesDropdownFilter, RelatedDropdownFilter
from channels_app.admin.forms import ReasonedForm
from channels_app.core import ids, recurrence, times
from channels_app.core.encryption import Unreadable
from channels_app.core.errors import Invalid
from channels_app.core.recurrence import Timetable
from channels_app.database import clock
from channels_app.ingest import recurring
from channels_app.models import Schedule
from channels_app.registry import schedules, viewing
from channels_app.registry.resource import WriteResult
from channels_app.registry.schedules import Order
from channels_app.serializers.schedules import SHOWN, ScheduleSerializer, ScheduleSummarySerializer
from delivery.maintenance.recurring import run_now

MAX_SHOWN = 64 * 1024
"""Maximum bytes of a body in the form; larger ones are registered through the API."""
State = Schedule.State
TONE = {State.ACTIVE: "good", State.PAUSED: "wait", State.ENDED: "calm"}
RESULT_TONE = {
    recurrence.FIRED: "good",
    recurrence.RUN: "busy",
    recurrence.MISSED: "wait",
    recurrence.OVERLAPPED: "wait",
    recurrence.REFUSED: "bad",
}
PAUSE = dialog(
    "Pause this schedule?",
    "It publishes nothing until it is resumed. Occurrences until then are skipped.",
    "Pause",
)
RESUME = dialog(
    "Resume this schedule?", "It continues with the next occurrence from now.", "Resume"
)
RUN = dialog(
    "Publish its message now?",
    "An extra message goes to every consumer that wants it. Its occurrences do not change.",
    "Publish it",
)
CONTENT = ("body", "headers")
"""Fields with the content of its messages."""


class ScheduleForm(ReasonedForm):
    """A schedule, with its body as text."""

    serializer = ScheduleSerializer
    body = forms.CharField(
        required=False,
        strip=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 6, "class": "hs-mono"}),
        help_text="Each message's body, exactly.",
    )
    headers = forms.JSONField(
        required=False,
        initial=dict,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2, "class": "hs-mono"}),
        help_text="Forwarded to consumers, as a JSON object.",
    )

    class Meta:
        model = Schedule
        fields = (
            *("channel", "name", "producer", "description", "cron", "every_ms", "timezone"),
            *("start_at", "end_at", "limit", "misfire", "overlap", "content_type", "event_type"),
            *("priority", "ordering_key", "headers"),
        )
        help_texts = {
            "cron": "minute hour day month weekday, as 0 9 * * 1-5; or six fields with seconds "
            "in front.",
            "every_ms": "Instead of cron: milliseconds from one to the next, at least 100.",
            "timezone": "The time zone of the expression, as Europe/Paris.",
            "start_at": "UTC. No occurrence before it.",
            "end_at": "UTC. No occurrence after it.",
            "limit": "It ends after this number of messages.",
            "misfire": "When occurrences are more than a minute late.",
            "overlap": "While its last message still waits for a consumer.",
            "priority": "0 to 9; empty: the producer's default.",
            "producer": "The producer of the messages; empty: the installation.",
        }
        widgets = {
            "cron": UnfoldAdminTextInputWidget(attrs={"placeholder": "0 9 * * 1-5"}),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk and "body" in self.fields:
            self._show_body()

    def _show_body(self) -> None:
        try:
            body = schedules.body_of(self.instance)
            if len(body) <= MAX_SHOWN:
                self.initial["body"] = body.decode()
                return
            reason = "It is too large for a form."
        except Unreadable as error:
            reason = str(error)
        except UnicodeDecodeError:
            reason = "It is not text."
        self.fields["body"].disabled = True
        self.fields["body"].help_text = f"{reason} Change this schedule through the API."

    def values(self) -> dict[str, Any]:
        """Return the form's fields under the API's names."""
        values = super().values()
        for name in ("cron", "content_type", "event_type", "ordering_key"):
            values[name] = values.get(name) or None
        for name in ("start_at", "end_at"):
            at = values.get(name)
            values[name] = times.text(at) if at else None
        values["headers"] = values.get("headers") or None
        values["body"] = _unix(self.cleaned_data.get("body") or "")
        return values

    def write(self, principal: Principal) -> WriteResult[Schedule]:
        """Create or change the schedule, as the API does."""
        schedule = self.instance
        if "body" not in self.fields or self.fields["body"].disabled:
            raise Invalid("invalid_fields", "Change this schedule through the API.", field="body")
        # A schedule of the console publishes for the producer that the form names.
        principal = replace(
            principal, producer=schedule.producer, reason=self.cleaned_data["reason"]
        )
        order = Order(schedule.channel.slug, schedule.name, principal, self.condition())
        return recurring.put(order, self.values())


def preview(typed: QueryDict, now: datetime) -> dict[str, Any]:
    """Return the timetable in words and the next occurrences of an unsaved form."""
    values: dict[str, Any] = {
        "cron": typed.get("cron") or None,
        "every_ms": _number(typed.get("every_ms")),
        "timezone": typed.get("timezone") or "UTC",
        "start_at": _instant(typed, "start_at"),
        "end_at": _instant(typed, "end_at"),
    }
    if not (values["cron"] or values["every_ms"]):
        return {"hint": "Enter a cron expression, or an interval in milliseconds."}
    try:
        read = ScheduleSerializer().read(values)
        table = Timetable(
            cron=read["cron"] or "",
            every_ms=read["every_ms"],
            zone=read["timezone"],
            anchor=now,
            start_at=read["start_at"],
            end_at=read["end_at"],
        )
        ahead = table.upcoming(now, SHOWN)
    except Invalid as bad:
        return {"faults": bad.faults}
    return {"words": table.words(), "ahead": in_zone(table, ahead)}


def in_zone(table: Timetable, instants: list[datetime]) -> list[tuple[datetime, str]]:
    """Return each instant with its local time in the schedule's zone."""
    return [(at, table.wall(at)) for at in instants]


@admin.register(Schedule)
class ScheduleAdmin(WithPageContext, RowActions, base.ResourceAdmin):
    """Schedules: create, edit, pause, resume, and run once."""

    form = ScheduleForm
    identity = ("channel", "name", "producer")
    list_display = ("name", "channel", "shown_state", "rhythm", "next_one", "last_one", "fired")
    list_select_related = ("channel",)
    list_filter = (("state", ChoicesDropdownFilter), ("channel", RelatedDropdownFilter))
    search_fields = ("name", "channel__slug", "description")
    search_help_text = "name, channel or description"
    autocomplete_fields = ("channel", "producer")
    ordering = ("channel__slug", "name")
    sortable_by = ("name", "channel")
    actions_detail = ("see_audit", "run_it", "pause", "resume")
    list_before_template = "delivery/schedules_top.html"
    change_form_outer_before_template = "delivery/schedule.html"
    change_form_before_template = "delivery/schedule_preview.html"
    fieldsets = (
        (None, {"fields": ("seen", ("channel", "name"), "producer", "description")}),
        (
            "When",
            {"fields": (("cron", "timezone"), ("every_ms", "limit"), "start_at", "end_at")},
        ),
        ("Misfires and overlaps", {"fields": (("misfire", "overlap"),)}),
        (
            "Message",
            {
                "fields": (
                    ("content_type", "event_type"),
                    "body",
                    "headers",
                    ("priority", "ordering_key"),
                    "reason",
                )
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        """Join the channel, which is part of the name."""
        rows: QuerySet[Schedule] = super().get_queryset(request)
        return rows.select_related("channel", "producer")

    def audit_target(self, obj: Schedule) -> str:
        """Its name in the audit log."""
        return f"schedule:{obj.channel.slug}/{obj.name}"

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """A hint for an empty list."""
        return {
            "none": not Schedule.objects.exists(),
            "may_add": self.has_add_permission(request),
            "add_url": reverse("admin:channels_app_schedule_add"),
        }

    def row_context(self, request: HttpRequest, row: Schedule) -> dict[str, Any]:
        """The schedule in words, its next occurrences and its last ones."""
        if body.may_see(request, row.channel):
            target, team_id = self.audit_target(row), row.owner_team_id
            viewing.note(base.principal(request), target, *CONTENT, team_id=team_id)
        return _shown(row)

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        """Include the content for users who may see bodies of the channel."""
        sets = super().get_fieldsets(request, obj)
        if obj is None or body.may_see(request, obj.channel):
            return sets
        return [
            (name, {**part, "fields": [field for field in part["fields"] if field not in CONTENT]})
            for name, part in sets
        ]

    def get_urls(self) -> list[URLPattern]:
        """Add the URL of the preview."""
        view = self.admin_site.admin_view(self.preview)
        return [path("preview/", view, name="channels_app_schedule_preview"), *super().get_urls()]

    def preview(self, request: HttpRequest) -> HttpResponse:
        """Preview the next occurrences of an unsaved form."""
        base.require(self.has_view_permission(request))
        context = preview(request.GET, clock.now())
        return TemplateResponse(request, "delivery/schedule_ahead.html", context)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Allow deletion: published messages remain."""
        return bool(request.user.has_perm("channels_app.delete_schedule"))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Omit the body from the objects that the confirmation lists."""
        deleted, counts, _, protected = super().get_deleted_objects(objs, request)
        return deleted, counts, set(), protected

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        """Delete one through its step."""
        schedules.remove(Order(obj.channel.slug, obj.name, base.principal(request)))

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        """Delete the selected ones, each through its step."""
        for schedule in queryset:
            self.delete_model(request, schedule)

    def has_pause_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Whether it is not paused."""
        return self.is_now(request, object_id, state__in=(State.ACTIVE, State.ENDED))

    def has_resume_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Whether it is paused."""
        return self.is_now(request, object_id, state=State.PAUSED)

    @pausing(PAUSE)
    def pause(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Pause the schedule."""
        return self._do(request, form, object_id, schedules.pause, "is paused")

    @resuming(RESUME)
    def resume(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Resume the schedule."""
        return self._do(request, form, object_id, schedules.resume, "goes on")

    @action(description="Run now", icon="bolt", permissions=["operate"], dialog=RUN)
    def run_it(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Publish its message once now."""
        return self._do(request, form, object_id, run_now, "has published a message")

    @display(description="State", ordering="state")
    def shown_state(self, schedule: Schedule) -> str:
        """Its state, in colour."""
        return base.label(schedule.state, TONE[State(schedule.state)])

    @display(description="When")
    def rhythm(self, schedule: Schedule) -> str:
        """Its timetable in words."""
        return schedule.timetable.words()

    @display(description="Next", ordering="next_at")
    def next_one(self, schedule: Schedule) -> str:
        """Its next occurrence."""
        return base.instant(schedule.next_at, exact=False)

    @display(description="Last")
    def last_one(self, schedule: Schedule) -> str:
        """Result of its last occurrence."""
        if not schedule.recent:
            return base.NONE
        result = schedule.recent[0]["result"]
        return base.label(result, RESULT_TONE.get(result, "calm"))

    @display(description="Messages")
    def fired(self, schedule: Schedule) -> str:
        """Number of messages published on schedule."""
        return f"{schedule.fired_count:,}"

    def _do(
        self, request: HttpRequest, form: Any, object_id: str, step: Callable[..., Any], done: str
    ) -> HttpResponse:
        schedule = Schedule.objects.select_related("channel").get(pk=object_id)
        name = (schedule.channel.slug, schedule.name)
        return self.carry_out(
            request,
            form,
            object_id,
            lambda principal: step(Order(*name, principal)),
            f"{schedule.name} {done}.",
        )


def _unix(text: str) -> str:
    # Browsers send line breaks as CR LF.
    return text.replace("\r\n", "\n")


def _number(text: str | None) -> int | str | None:
    return int(text) if text and text.isascii() and text.isdecimal() else text or None


def _instant(typed: QueryDict, name: str) -> str | None:
    day, at = typed.get(f"{name}_0") or "", typed.get(f"{name}_1") or "00:00"
    try:
        date, time = parse_date(day), parse_time(at)
    except ValueError:
        return day
    if date is None or time is None:
        return day or None
    return times.text(datetime.combine(date, time, tzinfo=UTC))


def _shown(schedule: Schedule) -> dict[str, Any]:
    now, table = clock.now(), schedule.timetable
    shown = ScheduleSummarySerializer(schedule, context={"now": now}).data
    ahead = table.upcoming(now, len(shown["next"]))
    lines = [
        line
        | {
            "tone": RESULT_TONE.get(line["result"], "calm"),
            "message_id": ids.from_public(ids.MESSAGE, line["message"] or ""),
        }
        for line in schedule.recent
    ]
    return {
        "words": shown["words"],
        "state_label": base.label(schedule.state, TONE[State(schedule.state)]),
        "ahead": in_zone(table, ahead),
        "lines": lines,
    }
