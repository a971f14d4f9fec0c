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


BAD: list[tuple[str, object]] = [
    ("team", "nobody"),
    *(("default_priority", value) for value in (10, -1, True, "4")),
    *(("max_priority", value) for value in (3, 4.5)),  # 3 is lower than the default priority
    *(("rate_limit", value) for value in ({"per_second": -1}, [5])),
    ("disabled", 0),
    ("description", None),
    ("slug", "other"),
]


def test_a_bad_field_or_name_is_named_and_nothing_is_stored(admin: Api) -> None:
    for field, value in BAD:
        answer = admin.put(URL, {field: value})
        at_fault = "default_priority" if value == 3 else field
        assert (answer.status, answer.json["field"]) == (422, at_fault), (field, value)
        assert answer.is_problem
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
def test_a_key_for_all_channels_must_be_requested_explicitly(admin: Api) -> None:
    ProducerFactory.create(slug="shop")
    ChannelFactory.create(slug="orders")
    refused: list[tuple[dict[str, object], str]] = [
        ({}, "Name the channels"),
        ({"channels": []}, "Name the channels"),
        ({"scopes": ["admin"]}, "An admin key"),
        ({"scopes": ["admin"], "channels": ["orders"]}, "An admin key"),
        ({"channels": ["orders"], "all_channels": True}, "Give either channels or"),
    ]
    for wishes, detail in refused:
        answer = admin.post(KEYS, wishes)
        assert (answer.status, answer.json["field"]) == (422, "all_channels"), wishes
        assert answer.json["detail"].startswith(f"all_channels: {detail}")
    assert not ApiKey.objects.filter(producer__slug="shop").exists()
    assert admin.post(KEYS, {"all_channels": True}).json["all_channels"] is True
    assert admin.post(KEYS, {"channels": ["orders"]}).json["all_channels"] is False


def test_an_invalid_request_creates_no_key(admin: Api) -> None:
    ProducerFactory.create(slug="shop")
    invalid = [
        *(("label", value) for value in (5, "x" * 201)),
        *(("scopes", value) for value in ([], "publish", ["fly"], ["read", "read"], [None])),
        *(("channels", value) for value in (["nowhere"], "orders", [1])),
        *(("expires_at", value) for value in ("tomorrow", "2001-01-01T00:00:00Z", "2030-01-01")),
        *(("expires_at", value) for value in ("9999-01-01T00:00:00Z", 10**30, True)),
        ("key", "hsk_mine"),
    ]
    for field, value in invalid:
        answer = admin.post(KEYS, {field: value})
        assert (answer.status, answer.json["field"]) == (422, field), (field, value)
        assert answer.is_problem
    assert not ApiKey.objects.filter(producer__slug="shop").exists()
