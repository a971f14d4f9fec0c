"""The console's view of scheduled messages: moved, sent now and cancelled."""

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from channels_app.core import times
from channels_app.models import AuditEntry, Message
from tests.support import console
from tests.support.factories import DeliveryFactory, MessageFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    return console.operator()


def move(message: Message) -> str:
    return reverse("admin:delivery_message_move", args=[message.pk])


def take_back(message: Message) -> str:
    return reverse("admin:delivery_message_cancel", args=[message.pk])


def test_scheduled_messages_are_listed_with_due_times(operator: Client) -> None:
    waits = MessageFactory.create(scheduled=True)
    sent = MessageFactory.create(dispatched=True)

    text = console.look(operator, console.list_url(Message, "?state=Acknowledged"))

    assert str(waits) in text
    assert str(sent) not in text
    assert waits.due_at.isoformat() in text


def test_a_scheduled_message_is_moved(operator: Client) -> None:
    message = MessageFactory.create(scheduled=True)
    assert move(message) in console.look(operator, console.page_url(message))
    tomorrow = timezone.now().replace(microsecond=0) + timedelta(days=1)

    operator.post(move(message), {"due_at": times.text(tomorrow), "reason": "not today"})

    message.refresh_from_db()
    assert message.due_at == tomorrow
    entry = AuditEntry.objects.get(action="message.reschedule")
    assert (entry.actor, entry.reason) == ("user:olga", "not today")
    assert entry.after == {"due_at": times.text(tomorrow)}


def test_a_scheduled_message_can_be_sent_now(operator: Client) -> None:
    message = MessageFactory.create(scheduled=True)
    operator.post(move(message), {"due_at": "", "now": "1"})
    message.refresh_from_db()
    assert message.due_at <= timezone.now()


@pytest.mark.parametrize("typed", ["tomorrow", "", "2999-01-01T00:00:00Z"])
def test_an_invalid_time_is_reported_and_kept_in_the_form(operator: Client, typed: str) -> None:
    message = MessageFactory.create(scheduled=True)

    answer = operator.post(move(message), {"due_at": typed}, follow=True)

    assert answer.context["due_at"] == typed
    assert [m.level_tag for m in answer.context["messages"]] == ["error"]
    before = message.due_at
    message.refresh_from_db()
    assert message.due_at == before


def test_a_waiting_retry_is_moved_with_its_message(operator: Client) -> None:
    delivery = DeliveryFactory.create(retrying=True)
    assert move(delivery.message) in console.look(operator, console.page_url(delivery.message))
    done = DeliveryFactory.create(delivered=True)
    assert move(done.message) not in console.look(operator, console.page_url(done.message))

    answer = operator.post(move(done.message), {"now": "1"}, follow=True)

    assert "no delivery that waits" in answer.content.decode()


def test_a_scheduled_message_is_cancelled(operator: Client) -> None:
    message = MessageFactory.create(scheduled=True)

    operator.post(take_back(message), {"reason": "wrong"})

    message.refresh_from_db()
    assert message.state == "cancelled"
    assert AuditEntry.objects.get(action="message.cancel").reason == "wrong"


def test_a_viewer_cannot_move_messages() -> None:
    onlooker, message = console.onlooker(), MessageFactory.create(scheduled=True)
    text = console.look(onlooker, console.page_url(message))
    for url in (move(message), take_back(message)):
        assert url not in text
        assert onlooker.post(url, {"now": "1"}).status_code == 403
        assert onlooker.get(url).status_code == 405
    assert set(AuditEntry.objects.values_list("action", flat=True)) == {"message.open"}
