"""The console's view of scheduled messages: moved, sent now and cancelled."""

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from channels_app.models import Message
from tests.support import console
from tests.support.factories import DeliveryFactory, MessageFactory

pytestmark = pytest.mark.django_db


def move(message: Message) -> str:
    return reverse("admin:delivery_message_move", args=[message.pk])


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
