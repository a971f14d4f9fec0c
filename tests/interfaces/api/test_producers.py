"""Producers and keys: operators create them, each key is shown once, revoked keys are refused."""

import pytest

from channels_app.api import authentication
from channels_app.models import ApiKey, AuditEntry, Producer
from tests.support.api import Api
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    ProducerFactory,
    TeamFactory,
    text_of,
)

URL = "producers/shop"
KEYS = f"{URL}/keys"


def test_put_patch_get(admin: Api) -> None:
    team = TeamFactory.create()
    created = admin.put(URL, {"team": team.slug, "max_priority": 5, "default_priority": 2})
    assert created.status == 201
    assert created.header("Location") == f"http://127.0.0.1:8000/api/v1/{URL}"
    again = admin.put(URL, {"max_priority": 5, "default_priority": 2})
    assert (again.status, again.etag) == (200, created.etag)
    limited = admin.patch(URL, {"rate_limit": {"per_second": 2.5, "burst": 10}})
    assert limited.json["rate_limit"] == {"per_second": 2.5, "burst": 10}
    assert limited.json["team"] == team.slug
    assert admin.patch(URL, {"team": None}).json["team"] is None
    assert admin.get(URL).json["slug"] == "shop"
    assert admin.get(URL, If_None_Match=admin.get(URL).etag).status == 304
    assert admin.get("producers/nobody").status == 404
    assert admin.patch("producers/nobody", {}).status == 404
    assert admin.put(URL, {}, If_Match=created.etag).status == 412


BAD = [
    ("team", "nobody"),
    ("default_priority", 10),
    ("default_priority", -1),
    ("default_priority", True),
    ("default_priority", "4"),
    ("max_priority", 3),  # lower than the default priority
    ("max_priority", 4.5),
    ("rate_limit", {"per_second": -1}),
    ("rate_limit", [5]),
    ("disabled", 0),
    ("description", None),
    ("slug", "other"),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda part: ascii(part)[:40])
def test_a_bad_field_is_named_and_nothing_is_stored(admin: Api, field: str, value: object) -> None:
    answer = admin.put(URL, {field: value})
    assert answer.status == 422
    assert answer.json["field"] == ("default_priority" if value == 3 else field)
    assert answer.is_problem
    assert not Producer.objects.exists()


def test_a_bad_name_is_refused(admin: Api) -> None:
    assert admin.put("producers/Shop", {}).json["field"] == "producer"
    assert not Producer.objects.exists()


def test_producers_are_visible_to_their_owners(admin: Api) -> None:
    team = TeamFactory.create()
    own = ProducerFactory.create(slug="own", team=team)
    ProducerFactory.create(slug="sister", team=team)
    ProducerFactory.create(slug="stranger", team=TeamFactory.create())
    ProducerFactory.create(slug="teamless")
    reader = Api(ApiKeyFactory.create(producer=own, scopes=["read"]))
    assert {item["slug"] for item in reader.get("producers").json["items"]} == {"own", "sister"}
    assert reader.get("producers/sister").status == 200
    assert reader.get("producers/stranger").status == 404
    assert reader.get("producers/teamless").status == 404
    assert len(admin.get("producers").json["items"]) == 4


@pytest.mark.seed("S0-11")
def test_a_key_is_issued_once_used_and_revoked(admin: Api) -> None:
    ProducerFactory.create(slug="shop")
    ChannelFactory.create(slug="orders")
    wishes = {"label": "web", "channels": ["orders"], "expires_at": "2030-01-01T00:00:00Z"}
    issued = admin.post(KEYS, wishes)
    assert issued.status == 201
    text, key_id = issued.json["key"], issued.json["key_id"]
    assert issued.json["scopes"] == ["publish"]
    assert issued.json["expires_at"] == "2030-01-01T00:00:00.000Z"
    secret = text.rpartition("_")[2]
    for table in (ApiKey, AuditEntry):
        assert secret not in str(list(table.objects.values()))
    (listed,) = admin.get(KEYS).json["items"]
    assert "key" not in listed

    def publish() -> int:
        return Api().post("channels/orders/messages", b"x", Authorization=f"Bearer {text}").status

    assert publish() == 202
    authentication.write_uses()
    assert admin.get(KEYS).json["items"][0]["last_used_at"] is not None
    assert admin.delete(f"{KEYS}/{key_id}").status == 204
    assert publish() == 401
    assert admin.delete(f"{KEYS}/{key_id}").status == 204
    assert admin.delete(f"{KEYS}/unknown").status == 404
    assert admin.delete(f"producers/other/keys/{key_id}").status == 404


def test_rotation_overlaps_or_replaces_at_once(admin: Api) -> None:
    ProducerFactory.create(slug="shop")
    wishes = {"scopes": ["read", "publish"], "label": "web", "all_channels": True}
    first = admin.post(KEYS, wishes).json
    second = admin.post(f"{KEYS}/{first['key_id']}/rotate", {"overlap_s": 600})
    assert second.status == 201
    assert second.json["scopes"] == ["read", "publish"]

    def status(key: dict[str, str]) -> int:
        return Api().get("channels", Authorization=f"Bearer {key['key']}").status

    assert (status(first), status(second.json)) == (200, 200)
    third = admin.post(f"{KEYS}/{second.json['key_id']}/rotate", {"overlap_s": 0}).json
    assert (status(second.json), status(third)) == (401, 200)
    refused = admin.post(f"{KEYS}/{second.json['key_id']}/rotate")
    assert (refused.status, refused.json["code"]) == (409, "key_of_no_use")
    assert admin.post(f"{KEYS}/unknown/rotate").status == 404
    stale = admin.post(f"{KEYS}/{third['key_id']}/rotate", If_Match='"99"')
    assert stale.status == 412
    assert admin.delete(f"{KEYS}/{third['key_id']}", If_Match='"99"').status == 412


@pytest.mark.trap("a key for all channels by omission")
@pytest.mark.parametrize(
    ("wishes", "detail"),
    [
        ({}, "Name the channels"),
        ({"channels": []}, "Name the channels"),
        ({"scopes": ["admin"]}, "An admin key"),
        ({"scopes": ["admin"], "channels": ["orders"]}, "An admin key"),
        ({"channels": ["orders"], "all_channels": True}, "Give either channels or"),
    ],
)
def test_a_key_for_all_channels_must_be_requested_explicitly(
    admin: Api, wishes: dict[str, object], detail: str
) -> None:
    ProducerFactory.create(slug="shop")
    ChannelFactory.create(slug="orders")

    answer = admin.post(KEYS, wishes)

    assert (answer.status, answer.json["field"]) == (422, "all_channels")
    assert answer.json["detail"].startswith(f"all_channels: {detail}")
    assert not ApiKey.objects.filter(producer__slug="shop").exists()
    assert admin.post(KEYS, {"all_channels": True}).json["all_channels"] is True
    assert admin.post(KEYS, {"channels": ["orders"]}).json["all_channels"] is False


BAD_KEYS = [
    ("label", 5),
    ("label", "x" * 201),
    ("scopes", []),
    ("scopes", "publish"),
    ("scopes", ["fly"]),
    ("scopes", ["read", "read"]),
    ("scopes", [None]),
    ("channels", ["nowhere"]),
    ("channels", "orders"),
    ("channels", [1]),
    ("expires_at", "tomorrow"),
    ("expires_at", "2001-01-01T00:00:00Z"),
    ("expires_at", "2030-01-01"),
    ("expires_at", "9999-01-01T00:00:00Z"),
    ("expires_at", 10**30),
    ("expires_at", True),
    ("key", "hsk_mine"),
]


@pytest.mark.parametrize(("field", "value"), BAD_KEYS, ids=lambda part: ascii(part)[:40])
def test_an_invalid_request_creates_no_key(admin: Api, field: str, value: object) -> None:
    ProducerFactory.create(slug="shop")
    answer = admin.post(KEYS, {field: value})
    assert (answer.status, answer.json["field"]) == (422, field)
    assert answer.is_problem
    assert ApiKey.objects.filter(producer__slug="shop").count() == 0


def test_keys_of_an_unknown_producer_are_404(admin: Api) -> None:
    assert admin.get("producers/nobody/keys").status == 404
    assert admin.post("producers/nobody/keys", {"all_channels": True}).status == 404


@pytest.mark.parametrize("scope", ["publish", "register", "receive", "read", "replay"])
def test_only_operators_write_producers_and_touch_keys(db: None, scope: str) -> None:
    key = ApiKeyFactory.create(scopes=[scope], producer__slug="shop")
    api, mine = Api(key), f"{KEYS}/{key.key_id}"
    calls = [("PUT", URL), ("PATCH", URL), ("GET", KEYS), ("POST", KEYS), ("DELETE", mine)]
    for method, path in [*calls, ("POST", f"{mine}/rotate")]:
        assert api.call(method, path, {}).json["code"] == "missing_scope", (method, path)
    assert text_of(key)
    assert ApiKey.objects.count() == 1
