"""The console's timeline: a chart, the next messages, and actions on them."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from broker_site.console import upcoming
from channels_app.core import times
from channels_app.database import clock
from channels_app.models import AuditEntry, Message
from delivery.queue import timeline
from tests.support import console
from tests.support.factories import ChannelFactory, MessageFactory

pytestmark = pytest.mark.django_db
PAGE = "/admin/timeline/"


def later(hours: float, **values: object) -> Message:
    return MessageFactory.create(due_at=clock.now() + timedelta(hours=hours), **values)


def test_upcoming_messages_are_ordered_by_due_time(operator: Client) -> None:
    third, first, second = later(30), later(0.5), later(5)
    gone = later(-1)

    text = console.look(operator, PAGE)

    places = [text.index(str(message)) for message in (first, second, third)]
    assert places == sorted(places)
    assert str(gone) not in text
    assert text.count("<rect") == 2  # those of the day; the third one is due tomorrow
    assert "2, at most 1 in 20 minutes" in text
    of_one = console.look(operator, f"{PAGE}?channel={second.channel_id}&span=hour")
    assert str(second) in of_one
    assert str(first) not in of_one
    assert "<rect" not in of_one


def test_the_timeline_is_paginated(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upcoming, "SHOWN", 2)
    channel = ChannelFactory.create()
    rows = [later(1 + place, channel=channel) for place in range(3)]

    first = console.look(operator, PAGE)
    (address,) = re.findall(r'href="(\?[^"]*after=[^"]*)"', first)
    second = console.look(operator, PAGE + address.replace("&amp;", "&"))

    assert [str(row) in first for row in rows] == [True, True, False]
    assert [str(row) in second for row in rows] == [False, False, True]
    assert "Back to the first" in second
    assert str(rows[0]) in console.look(operator, f"{PAGE}?after=nonsense")


def test_the_chart_shows_small_values() -> None:
    load = timeline.TimelineLoad(clock.now(), timedelta(minutes=1), [0, 1, 1000], True)
    low, little, most = upcoming.bars(load)
    assert (low.height, little.height, most.height) == (0.0, 2.0, 100.0)
    assert (little.y, most.y) == (98.0, 0.0)


def test_a_message_is_moved_and_cancelled_from_there(operator: Client) -> None:
    moved, cancelled = later(2), later(3)
    at = (clock.now() + timedelta(days=3)).replace(microsecond=0)
    back = "?span=week"

    answer = operator.post(
        reverse("admin:delivery_message_move", args=[moved.pk]),
        {"due_at": times.text(at), "reason": "later", "back": back},
    )
    assert answer.headers["Location"] == PAGE + back
    assert Message.objects.get(pk=moved.pk).due_at == at
    answer = operator.post(
        reverse("admin:delivery_message_cancel", args=[cancelled.pk]),
        {"reason": "no more", "back": "https://example.org/"},
    )
    assert answer.headers["Location"] == console.page_url(cancelled)
    assert Message.objects.get(pk=cancelled.pk).state == "cancelled"
    entries = AuditEntry.objects.order_by("id").values_list("actor", "action", "reason", "after")
    assert [entry[:3] for entry in entries] == [
        ("user:olga", "message.reschedule", "later"),
        ("user:olga", "message.cancel", "no more"),
    ]
    assert entries[0][3] == {"due_at": times.text(at)}
    text = console.look(operator, PAGE + back)
    assert str(moved) in text
    assert str(cancelled) not in text
