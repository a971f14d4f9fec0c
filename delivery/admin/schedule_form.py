"""Provide the form of a schedule with the API's fields, and preview its next occurrences."""

from datetime import UTC, datetime
from typing import Any

from django import forms
from django.http import QueryDict
from django.utils.dateparse import parse_date, parse_time
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from channels_app.admin.forms import ReasonedForm
from channels_app.api import recurring
from channels_app.errors import Invalid
from channels_app.models import Schedule
from channels_app.rules import recurrence, times
from channels_app.rules.encryption import Unreadable
from channels_app.rules.fields import InvalidValues
from channels_app.rules.timetable import Timetable
from channels_app.rules.write_result import WriteResult
from channels_app.steps import register_schedule
from channels_app.steps.register_schedule import Order, Owner

MAX_SHOWN = 64 * 1024
"""Maximum bytes of a body in the form; larger ones are registered through the API."""


class ScheduleForm(ReasonedForm):
    """A schedule, with its body as text."""

    known = recurrence.FIELDS
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
            body = register_schedule.body_of(self.instance)
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

    def write(self, actor: str) -> WriteResult[Schedule]:
        """Create or change the schedule, as the API does."""
        schedule = self.instance
        if "body" not in self.fields or self.fields["body"].disabled:
            raise Invalid("invalid_fields", "Change this schedule through the API.", field="body")
        order = Order(
            schedule.channel.slug,
            schedule.name,
            actor,
            Owner(producer=schedule.producer),
            self.condition(),
            self.cleaned_data["reason"],
        )
        return recurring.put_here(order, self.values())


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
        read = recurrence.clean("preview", values)
        table = Timetable(
            cron=read["cron"] or "",
            every_ms=read["every_ms"],
            zone=read["timezone"],
            anchor=now,
            start_at=read["start_at"],
            end_at=read["end_at"],
        )
        ahead = table.upcoming(now, recurring.SHOWN)
    except InvalidValues as bad:
        return {"faults": bad.faults}
    return {"words": table.words(), "ahead": in_zone(table, ahead)}


def in_zone(table: Timetable, instants: list[datetime]) -> list[tuple[datetime, str]]:
    """Return each instant with its local time in the schedule's zone."""
    return [(at, table.wall(at)) for at in instants]


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
