"""Producers and keys: operators create them, each key is shown once, revoked keys are refused."""

import pytest

from channels_app.models import ApiKey
from tests.support.api import Api
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    ProducerFactory,
    TeamFactory,
)

URL = "producers/shop"
KEYS = f"{URL}/keys"


def test_put_keeps_the_team_and_the_default_priority_is_accepted(admin: Api) -> None:
    team = TeamFactory.create()
    admin.put(URL, {"team": team.slug})
    assert admin.put(URL, {"max_priority": 4}).json["team"] == team.slug
    limited = admin.patch(URL, {"rate_limit": {"per_second": 2.5, "burst": 10}})
    assert limited.json["rate_limit"] == {"per_second": 2.5, "burst": 10}
    assert admin.patch(URL, {"team": None}).json["team"] is None
    above = admin.patch(URL, {"max_priority": 3})
    assert (above.status, above.json["field"]) == (422, "default_priority")


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


def test_only_the_current_version_of_a_producers_own_key_is_changed(admin: Api) -> None:
    ProducerFactory.create(slug="shop")
    key_id = admin.post(KEYS, {"all_channels": True}).json["key_id"]
    assert admin.post(f"{KEYS}/unknown/rotate").status == 404
    assert admin.delete(f"{KEYS}/unknown").status == 404
    assert admin.delete(f"producers/other/keys/{key_id}").status == 404
    assert admin.post(f"{KEYS}/{key_id}/rotate", If_Match='"99"').status == 412
    assert admin.delete(f"{KEYS}/{key_id}", If_Match='"99"').status == 412
    for _ in range(2):
        assert admin.delete(f"{KEYS}/{key_id}").status == 204


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
