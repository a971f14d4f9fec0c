"""Unknown headers and parameters of an operation are refused by name."""

from typing import Any

import pytest
from django.test import Client
from rest_framework.views import APIView

from channels_app.api.base import ApiView, OpenView
from channels_app.api.options import DELIVERED
from channels_app.api.views.publish import PublishView
from channels_app.database import clock
from channels_app.ingest import publication
from channels_app.models import Message
from delivery.core import signing
from delivery.core.signing import Envelope
from tests.support.api import Api
from tests.support.factories import ApiKeyFactory, ChannelFactory
from tests.support.routes import routes

pytestmark = pytest.mark.django_db

METHODS = ("get", "post", "put", "patch", "delete")


@pytest.fixture(autouse=True)
def _channel() -> None:
    ChannelFactory.create(slug="orders")


def operations() -> list[Any]:
    """Return path, method and handler of every operation of the API that needs a key."""
    found = []
    for path, pattern in routes():
        view: Any = getattr(pattern.callback, "view_class", None)
        if view is None or not issubclass(view, APIView):
            continue
        if not issubclass(view, ApiView) or issubclass(view, OpenView):
            continue
        for method in METHODS:
            if handler := getattr(view, method, None):
                found.append((path, method, handler))
    return found


def test_every_operation_documents_its_options() -> None:
    for path, method, handler in operations():
        assert hasattr(handler, "query_options"), f"{method} {path}: use openapi.operation"


@pytest.mark.trap("an unknown option is ignored")
def test_an_unknown_option_is_refused_by_name(admin: Api) -> None:
    for method, path in (
        ("GET", "channels"),
        ("GET", "channels/orders"),
        ("HEAD", "channels/orders"),
        ("PUT", "channels/orders"),
        ("POST", "channels/orders/messages"),
        ("POST", "channels/orders/messages/batch"),
        ("GET", "channels/orders/timeline"),
        ("GET", "channels/orders/event-types/paid"),
        ("POST", "channels/orders/consumers/one/receive"),
        ("POST", "leases/ack"),
        ("POST", "messages/cancel"),
        ("GET", "replays"),
    ):
        parameter = admin.call(method, f"{path}?limits=5", {})
        header = admin.call(method, path, {}, Hookstation_Prioritiy="9")
        for answer, code, field in (
            (parameter, "invalid_parameter", "limits"),
            (header, "invalid_header", "Hookstation-Prioritiy"),
        ):
            assert answer.status == 422, (method, path)
            if method != "HEAD":
                assert (answer.json["code"], answer.json["field"]) == (code, field), path
    assert not Message.objects.exists()


def test_an_unknown_option_gets_a_suggestion(admin: Api) -> None:
    path = "channels/orders/messages"
    answer = admin.call("POST", path, {}, Hookstation_Prioritiy="9")
    assert answer.json["detail"] == "There is no such header; did you mean Hookstation-Priority?"
    answer = admin.call("GET", "replays?limitt=5")
    assert "did you mean limit?" in answer.json["detail"]
    answer = admin.call("GET", "channels/orders?x=")
    assert answer.json["detail"] == "There is no such parameter; leave it out."


def test_headers_to_be_forwarded_may_have_any_name(admin: Api) -> None:
    path = "channels/orders/messages"
    assert admin.call("POST", path, {}, Hookstation_Header_Anything="x").status == 202
    answer = admin.call("GET", "channels/orders", Hookstation_Header_Anything="x")
    assert answer.json["field"] == "Hookstation-Header-Anything"


def test_broker_headers_are_accepted_when_publishing(admin: Api) -> None:
    """Headers that a broker sends with deliveries are no options and are accepted."""
    sent = signing.build(
        Envelope(
            message_id="msg_1",
            timestamp=1,
            signature="v1,x",
            channel="a",
            consumer="b",
            priority=4,
            attempt=2,
            max_attempts=10,
            accepted_at=clock.now(),
            user_agent="test",
            event_type="order.created",
            ordering_key="k",
            ack_url="https://example.com/acks/x",
            replay=True,
            test=True,
        )
    )
    ours = {name: value for name, value in sent if name.startswith("Hookstation-")}
    assert set(ours) - publication.HEADERS == DELIVERED
    headers = {name.replace("-", "_"): value for name, value in ours.items()}
    assert admin.call("POST", "channels/orders/messages", {}, **headers).status == 202


def test_both_ways_of_publishing_know_the_same_headers() -> None:
    assert PublishView.post.header_options == publication.HEADERS  # type: ignore[attr-defined]  # a note of ours


def test_without_a_key_unknown_options_get_401_or_are_accepted(client: Client) -> None:
    for path in ("/api/v1/channels?limits=5", "/api/v1/channels/orders/messages?limits=5"):
        for method in (client.get, client.post):
            assert method(path).status_code in (401, 405)
    # Public URLs accept them.
    assert client.get("/livez?x=1", headers={"Hookstation-Nonsense": "1"}).status_code == 200


def test_a_missing_scope_is_reported_before_unknown_options() -> None:
    publisher = Api(ApiKeyFactory.create(scopes=["publish"]))
    assert publisher.call("GET", "replays?limitt=5").status == 403
