"""The console's pages of schedules: created by a form, previewed, paused, resumed and run."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from channels_app.core import ids, recurrence
from channels_app.database import clock
from channels_app.models import AuditEntry, Message, Schedule
from channels_app.registry import schedules
from tests.support import console
from tests.support.factories import ChannelFactory, ProducerFactory, ScheduleFactory

pytestmark = pytest.mark.django_db
ADD = reverse("admin:channels_app_schedule_add")
PREVIEW = reverse("admin:channels_app_schedule_preview")
LIST = reverse("admin:channels_app_schedule_changelist")


def form(**values: Any) -> dict[str, Any]:
    """Return the form as a browser sends it."""
    empty = ("description", "every_ms", "limit", "content_type", "event_type", "priority")
    return {
        **dict.fromkeys((*empty, "ordering_key", "producer", "reason", "headers"), ""),
        **{f"{name}_{part}": "" for name in ("start_at", "end_at") for part in (0, 1)},
        **{"name": "daily", "cron": "0 9 * * 1-5", "timezone": "Europe/Paris"},
        **{"misfire": "fire_once", "overlap": "allow", "body": "first\r\nsecond"},
        **values,
    }


def test_a_form_creates_and_changes_a_schedule(operator: Client) -> None:
    channel, producer = ChannelFactory.create(), ProducerFactory.create()
    answer = operator.post(
        ADD,
        form(
            channel=channel.pk, producer=producer.pk, start_at_0="2090-01-01", start_at_1="10:00:00"
        ),
    )
    assert answer.status_code == 302, answer.content
    schedule = Schedule.objects.get()
    assert (schedule.cron, schedule.timezone, schedule.producer) == (
        "0 9 * * 1-5",
        "Europe/Paris",
        producer,
    )
    assert schedule.start_at is not None
    assert schedule.start_at.isoformat() == "2090-01-01T10:00:00+00:00"
    assert schedules.body_of(schedule) == b"first\nsecond"
    url = console.page_url(schedule)
    page = console.look(operator, url)
    assert "At 09:00 on Monday through Friday, Europe/Paris" in page
    assert "first\nsecond" in page
    changed = form(seen=schedule.version, cron="", every_ms="500", body="third", reason="faster")
    assert operator.post(url, changed).status_code == 302
    schedule.refresh_from_db()
    assert (schedule.cron, schedule.every_ms) == ("", 500)
    entry = AuditEntry.objects.latest("id")
    assert (entry.action, entry.actor, entry.reason) == ("schedule.update", "user:olga", "faster")


def test_the_form_previews_occurrences(operator: Client) -> None:
    nine = {"cron": "0 9 * * *"}
    previews: list[tuple[dict[str, str], str]] = [
        ({}, "Enter a cron expression"),
        (nine | {"timezone": "Europe/Paris"}, "At 09:00 every day, Europe/Paris"),
        (nine | {"timezone": "Paris"}, "A time zone is an IANA name"),
        (nine | {"every_ms": "500"}, "Give either"),
        ({"every_ms": "half"}, "A whole number"),
        ({"every_ms": "60000"}, "Every minute"),
        (nine | {"end_at_0": "2020-01-01"}, "There is no further occurrence."),
        (nine | {"start_at_0": "2020-13-99"}, "Write an instant"),
        ({"cron": "<b>"}, "Five fields"),
    ]
    for typed, words in previews:
        page = operator.get(PREVIEW, typed).content.decode()
        assert words in page
        assert "<b>" not in page


def test_pause_resume_and_run(operator: Client) -> None:
    schedule = ScheduleFactory.create()
    for name, state in (("pause", "paused"), ("resume", "active")):
        url = reverse(f"admin:channels_app_schedule_{name}", args=[schedule.pk])
        assert operator.get(url).status_code == 200  # only shows the dialog
        operator.post(url, {"_form_submitted": "True", "reason": "night"})
        schedule.refresh_from_db()
        assert schedule.state == state
    run = reverse("admin:channels_app_schedule_run_it", args=[schedule.pk])
    operator.post(run, {"_form_submitted": "True", "reason": ""})
    message = Message.objects.get()
    page = console.look(operator, console.page_url(schedule))
    assert f"/admin/channels_app/message/{message.pk}/change/" in page
    assert ids.to_public(ids.MESSAGE, message.pk) in page


def test_a_schedule_is_deleted_and_audited(operator: Client) -> None:
    schedule = ScheduleFactory.create()
    url = reverse("admin:channels_app_schedule_delete", args=[schedule.pk])
    assert operator.post(url, {"post": "yes"}).status_code == 302
    assert AuditEntry.objects.latest("id").action == "schedule.delete"


@pytest.mark.parametrize(
    ("traits", "sentence"),
    [({"paused": True}, "When you resume it"), ({"ended": True}, "It has ended")],
)
def test_an_ended_schedule_shows_the_reason(
    operator: Client, traits: dict[str, bool], sentence: str
) -> None:
    schedule = ScheduleFactory.create(**traits)
    assert sentence in console.look(operator, console.page_url(schedule))


@pytest.mark.parametrize("body", [b"\xff\x00", b"x" * 70_000])
def test_a_binary_body_is_kept(operator: Client, body: bytes) -> None:
    schedule = ScheduleFactory.create(body=body)
    url = console.page_url(schedule)
    assert "Change this schedule through the API" in console.look(operator, url)
    answer = operator.post(url, form(seen=schedule.version))
    assert "through the API" in answer.content.decode()
    assert schedules.body_of(Schedule.objects.get()) == body


def test_results_are_shown(operator: Client) -> None:
    now = clock.now()
    missed = recurrence.line(recurrence.MISSED, now, occurrence_at=now, count=1234)
    refused = recurrence.line(recurrence.REFUSED, now, occurrence_at=now, detail="<i>Why</i>")
    schedule = ScheduleFactory.create(recent=[missed, refused])
    page = console.look(operator, console.page_url(schedule))
    assert "1,234 times" in page
    assert "&lt;i&gt;Why&lt;/i&gt;" in page
