"""Event types: who may write the catalogue of a channel."""

import pytest

from channels_app.models import EventType
from tests.support.api import Api
from tests.support.factories import ApiKeyFactory, ChannelFactory, ProducerFactory, TeamFactory

URL = "channels/orders/event-types/order.created"
SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}


@pytest.fixture(autouse=True)
def _channel(db: None) -> None:
    ChannelFactory.create(slug="orders", external=True)


@pytest.fixture
def service() -> Api:
    """A client with a producer's key that may register on this channel."""
    return Api(ApiKeyFactory.create(scopes=["register"], channels=["orders", "nowhere"]))


@pytest.mark.trap("a schema that another team replaces")
@pytest.mark.parametrize("channels", [[], ["invoices"]], ids=["no grant", "another's grant"])
def test_a_producer_of_another_channel_changes_no_catalogue(
    service: Api, channels: list[str]
) -> None:
    service.put(URL, {"schema": SCHEMA})
    ours = EventType.objects.get()
    key = {"scopes": ["register", "publish"], "channels": channels}
    stranger = Api(ApiKeyFactory.create(producer=ProducerFactory.create(), **key))
    for method in ("PUT", "PATCH", "DELETE"):
        answer = stranger.call(method, URL, {"schema": None})
        assert (answer.status, answer.json["code"]) == (403, "no_grant")
    assert stranger.call("PUT", f"{URL}.more", {}).status == 403
    assert EventType.objects.get() == ours
    assert EventType.objects.get().schema == SCHEMA


@pytest.mark.trap("a schema that another team replaces")
def test_an_event_type_belongs_to_its_producer_and_team(service: Api, admin: Api) -> None:
    team = TeamFactory.create()
    shop, till = (ProducerFactory.create(team=team) for _ in range(2))
    scopes, channels = ["register"], ["orders"]
    owner, sister = (
        Api(ApiKeyFactory.create(producer=it, scopes=scopes, channels=channels))
        for it in (shop, till)
    )
    assert owner.put(URL, {"description": "ours"}).status == 201

    for refused in (service.put(URL, {}), service.patch(URL, {}), service.delete(URL)):
        assert (refused.status, refused.json["code"]) == (403, "not_the_owner")
        assert shop.slug not in str(refused.json)
    assert admin.get(URL).json["description"] == "ours"
    assert sister.patch(URL, {"description": "of the team"}).status == 200
    assert admin.patch(URL, {"description": "an operator's word"}).status == 200
    assert owner.delete(URL).status == 204


def test_operators_event_types_are_changed_by_no_producer_and_no_team(
    service: Api, admin: Api
) -> None:
    assert admin.put(URL, {}).status == 201

    assert service.delete(URL).json["code"] == "not_the_owner"
    team = Api(ApiKeyFactory.create(team=TeamFactory.create(), scopes=["register"]))
    assert team.get(URL).status == 200
    for method in ("PUT", "PATCH", "DELETE"):
        answer = team.call(method, URL, {})
        assert (answer.status, answer.json["code"]) == (403, "producers_only")
    installation = ApiKeyFactory.create(producer=None, scopes=["register"], channels=["orders"])
    assert Api(installation).delete(URL).status == 204
