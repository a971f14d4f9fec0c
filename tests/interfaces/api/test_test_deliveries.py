"""Test deliveries over HTTP: the consumer's response to a sample is returned unchanged."""

from typing import Any

import pytest

from channels_app.models import ConsumerSecret
from delivery.transport import test_delivery
from tests.support.calling import Api, problem
from tests.support.factories import ChannelFactory, ConsumerFactory, TeamFactory
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


def test_a_test_shows_a_failing_response(api: Api, receiver: Receiver) -> None:
    consumer = ConsumerFactory.create(url=receiver.url("/status/500"))

    body = api.post(at(consumer), {}).json()

    assert (body["delivered"], body["outcome"], body["status_code"]) == (False, "server_error", 500)
    assert body["error"]


def test_a_test_shows_a_connection_failure(api: Api) -> None:
    body = api.post(at(ConsumerFactory.create())).json()

    assert (body["outcome"], body["status_code"]) == ("connection_refused", None)
    assert body["response"] == {"headers": "", "body": ""}


def test_an_untestable_consumer_is_refused_with_a_reason(api: Api) -> None:
    sealed = ConsumerFactory.create()
    ConsumerSecret.objects.filter(consumer=sealed).update(sealed=b"\x01nonsense")

    for consumer, code in (
        (ConsumerFactory.create(pull=True), "not_push"),
        (ConsumerFactory.create(retired=True), "consumer_retired"),
        (sealed, "secrets_unreadable"),
    ):
        assert problem(api.post(at(consumer))) == (409, code, "")


@pytest.mark.parametrize(
    ("body", "status"), [({"event_type": "a"}, 422), (b"[]", 400), (b"{", 400)]
)
def test_a_test_takes_no_fields(api: Api, body: Any, status: int) -> None:
    assert problem(api.post(at(ConsumerFactory.create()), body))[0] == status


def test_testing_requires_a_scope() -> None:
    channel = ChannelFactory.create(external=True)
    theirs = ConsumerFactory.create(channel=channel, team=TeamFactory.create())
    scopes = ["publish", "receive", "read", "replay"]

    assert problem(Api(scopes=scopes).post(at(theirs)))[:2] == (403, "missing_scope")
    assert problem(Api().post(at(theirs)))[0] == 401
    granted_elsewhere = Api(scopes=["register"], channels=["other"])
    assert problem(granted_elsewhere.post(at(theirs)))[:2] == (403, "no_grant")
    for stranger in (Api(scopes=["register"]), Api(team=TeamFactory.create(), scopes=["register"])):
        assert problem(stranger.post(at(theirs)))[:2] == (404, "unknown_consumer")
    assert Api(team=theirs.team, scopes=["register"]).post(at(theirs)).status_code == 200
    assert problem(Api(scopes=["register"]).post("/channels/no/consumers/a/test"))[0] == 404


def test_too_many_concurrent_tests_get_retry_after(
    api: Api, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = ConsumerFactory.create(url=receiver.url("/hook"))
    monkeypatch.setattr(test_delivery, "MAX_CONCURRENT", 0)

    answer = api.post(at(consumer))

    assert problem(answer) == (429, "too_many_tests", "")
    assert answer["Retry-After"] == "1"
    assert receiver.requests() == []
