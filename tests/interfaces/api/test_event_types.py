"""Event types: a catalogue that producers maintain, with schemas that can be enforced."""

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


@pytest.mark.seed("S1-10")
def test_put_get_patch_delete(service: Api) -> None:
    body = {"description": "An order", "schema": SCHEMA, "example": {"id": 1}}
    created = service.put(URL, body)
    assert created.status == 201
    assert created.header("Location") == f"http://127.0.0.1:8000/api/v1/{URL}"
    again = service.put(URL, body)
    assert (again.status, again.etag) == (200, created.etag)
    shown = service.get(URL)
    assert (shown.json["schema"], shown.json["example"]) == (SCHEMA, {"id": 1})
    assert service.get(URL, If_None_Match=shown.etag).status == 304
    changed = service.patch(URL, {"deprecated": True})
    assert changed.json["schema"] == SCHEMA
    (item,) = service.get("channels/orders/event-types").json["items"]
    assert item == changed.json
    assert service.delete(URL, If_Match=created.etag).status == 412
    assert service.delete(URL, If_Match=changed.etag).status == 204
    assert service.get(URL).status == 404
    assert service.delete(URL).status == 404
    assert service.patch(URL, {}).status == 404


def deep(levels: int) -> object:
    return [] if levels == 0 else [deep(levels - 1)]


BAD: list[tuple[str, object]] = [
    ("description", 1),
    ("deprecated", "no"),
    *(
        ("schema", value)
        for value in ("string", list[str](), 5, {"type": "objekt"}, {"pattern": "("})
    ),
    *(
        ("schema", {"$ref": to})
        for to in ("https://example.com/schema.json", "#/$defs/missing", "#")
    ),
    ("schema", {"$schema": "https://example.com/mine"}),
    ("schema", {"pattern": "x" * 501}),
    *(("schema", {"title": text}) for text in ("\ud800", "x" * 70_000)),
    ("schema", {"enum": [deep(40)]}),
    *(("example", value) for value in ({"half": "\ud800"}, deep(40), "x" * 70_000)),
    ("name", "other"),
]


def test_a_bad_field_is_named_and_nothing_is_stored(service: Api) -> None:
    for field, value in BAD:
        answer = service.put(URL, {field: value})
        assert (answer.status, answer.json["field"]) == (422, field), ascii(value)[:80]
        assert answer.is_problem
    assert not EventType.objects.exists()


def test_a_bad_name_is_refused(service: Api) -> None:
    for name in ("order..created", ".order", "order-created", "x" * 129, "%00"):
        answer = service.put(f"channels/orders/event-types/{name}", {})
        assert (answer.status, answer.json["field"]) == (422, "name")
    assert not EventType.objects.exists()


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
