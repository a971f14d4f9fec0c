"""Test deliveries over HTTP: the consumer's response to a sample is returned unchanged."""

from typing import Any

import pytest

from channels_app.models import ConsumerSecret
from tests.support.calling import Api, problem
from tests.support.factories import ConsumerFactory
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db


@pytest.fixture
def api() -> Api:
    return Api(scopes=["register"])


def at(consumer: Any) -> str:
    return f"/channels/{consumer.channel.slug}/consumers/{consumer.client_id}/test"


def test_a_test_shows_the_consumers_response(api: Api, receiver: Receiver) -> None:
    consumer = ConsumerFactory.create(url=receiver.url("/hook"))
    receiver.script("/hook", [Reply(200, b"thanks", headers=(("X-Seen", "yes"),))])

    answer = api.post(at(consumer))

    body = answer.json()
    assert answer.status_code == 200
    assert (body["delivered"], body["outcome"], body["status_code"]) == (True, "delivered", 200)
    assert body["response"]["body"] == "thanks"
    assert "X-Seen: yes" in body["response"]["headers"]
    (request,) = receiver.wait_for(1)
    assert request.header("webhook-id") == body["webhook_id"]
    assert request.body.decode() == body["body"]
    assert body["remote_address"] == "127.0.0.1"


def test_an_untestable_consumer_is_refused_with_a_reason(api: Api) -> None:
    sealed = ConsumerFactory.create()
    ConsumerSecret.objects.filter(consumer=sealed).update(sealed=b"\x01nonsense")

    for consumer, code in (
        (ConsumerFactory.create(pull=True), "not_push"),
        (ConsumerFactory.create(retired=True), "consumer_retired"),
        (sealed, "secrets_unreadable"),
    ):
        assert problem(api.post(at(consumer))) == (409, code, "")


def test_a_test_takes_no_fields(api: Api) -> None:
    path = at(ConsumerFactory.create())
    for body, status in (({"event_type": "a"}, 422), (b"[]", 400), (b"{", 400)):
        assert problem(api.post(path, body))[0] == status
