"""Channels: PUT is idempotent, versions guard writes, and invalid values are refused."""

import pytest

from channels_app.models import AuditEntry, Channel
from tests.support.api import Api
from tests.support.factories import ApiKeyFactory, ChannelFactory, TeamFactory

URL = "channels/orders"


@pytest.mark.seed("S0-10")
def test_put_creates_then_replaces_and_the_same_twice_changes_nothing(admin: Api) -> None:
    created = admin.put(URL, {"description": "All orders", "retention_days": 7})
    assert created.status == 201
    assert created.header("Location") == "http://127.0.0.1:8000/api/v1/channels/orders"
    again = admin.put(URL, {"description": "All orders", "retention_days": 7})
    assert (again.status, again.etag, again.json) == (200, created.etag, created.json)
    assert AuditEntry.objects.count() == 1
    replaced = admin.put(URL, {"description": "Orders"})
    assert replaced.status == 200
    assert replaced.json["retention_days"] is None
    assert replaced.json["effective"]["retention_days"] == 30
    assert replaced.etag != created.etag


def test_put_needs_no_body(admin: Api) -> None:
    assert admin.put(URL).status == 201


def test_put_keeps_the_paused_state(admin: Api) -> None:
    admin.put(URL, {"paused": True})
    assert admin.put(URL, {}).json["paused"] is True
    assert admin.patch(URL, {"paused": False}).json["paused"] is False


def test_patch_changes_only_what_it_names(admin: Api) -> None:
    admin.put(URL, {"description": "All orders", "max_body_bytes": 100})
    changed = admin.patch(URL, {"content_types": ["application/json", "text/*"]})
    assert changed.status == 200
    assert changed.json["description"] == "All orders"
    assert changed.json["max_body_bytes"] == 100
    entry = AuditEntry.objects.latest("id")
    assert (entry.action, entry.before) == ("channel.update", {"content_types": []})
    assert entry.after == {"content_types": ["application/json", "text/*"]}
    assert entry.actor.startswith("key:")


def test_patch_of_an_unknown_channel_is_404(admin: Api) -> None:
    answer = admin.patch("channels/nowhere", {"paused": True})
    assert (answer.status, answer.json["code"]) == (404, "unknown_channel")


def test_get_answers_with_its_version(admin: Api) -> None:
    etag = admin.put(URL).etag
    shown = admin.get(URL)
    assert (shown.status, shown.etag) == (200, etag)
    assert shown.json["slug"] == "orders"
    assert admin.get(URL, If_None_Match=etag).status == 304
    assert admin.get(URL, If_None_Match=f'W/{etag}, "99"').status == 304
    assert admin.get(URL, If_None_Match='"99"').status == 200
    assert admin.get("channels/nowhere").status == 404


@pytest.mark.trap("lost updates")
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_a_stale_version_is_412_and_changes_nothing(admin: Api, method: str) -> None:
    etag = admin.put(URL).etag
    admin.patch(URL, {"description": "Moved on"})
    answer = admin.call(method, URL, {"description": "Lost update"}, If_Match=etag)
    assert (answer.status, answer.json["code"]) == (412, "stale_version")
    assert answer.is_problem
    assert admin.get(URL).json["description"] == "Moved on"


def test_matching_preconditions_pass(admin: Api) -> None:
    etag = admin.put(URL, If_None_Match="*").etag
    assert admin.put(URL, If_None_Match="*").status == 412
    assert admin.patch(URL, {"description": "x"}, If_Match=f'"77", {etag}').status == 200
    assert admin.patch(URL, {"description": "y"}, If_Match="*").status == 200
    assert admin.put("channels/other", If_Match="*").status == 412
    assert not Channel.objects.filter(slug="other").exists()


@pytest.mark.parametrize("tag", ["3", '"3', "'3'", '"3" "4"', ","])
def test_an_invalid_etag_is_refused(admin: Api, tag: str) -> None:
    admin.put(URL)
    answer = admin.patch(URL, {"description": "x"}, If_Match=tag)
    assert (answer.status, answer.json["field"]) == (422, "If-Match")
    answer = admin.patch(URL, {"description": "x"}, If_None_Match=tag)
    assert (answer.status, answer.json["field"]) == (422, "If-None-Match")


HUGE = 10**40
BAD = [
    ("description", 5),
    ("description", "x" * 2001),
    ("description", "nul\x00"),
    ("description", "half \ud800"),
    ("exposure", "public"),
    ("exposure", None),
    ("exposure", ["internal"]),
    ("kind", "stack"),
    ("kind", True),
    ("ordering", "lifo"),
    ("ordering", True),
    ("ordering_key_path", "a..b"),
    ("ordering_key_path", ["a"]),
    ("reorder_window_ms", -1),
    ("reorder_window_ms", 5001),
    ("reorder_window_ms", None),
    ("paused", 1),
    ("paused", "true"),
    ("paused", None),
    ("encrypt_bodies", 0),
    ("require_idempotency_key", "yes"),
    ("max_body_bytes", 0),
    ("max_body_bytes", -1),
    ("max_body_bytes", True),
    ("max_body_bytes", 1.5),
    ("max_body_bytes", HUGE),
    ("max_body_bytes", "100"),
    ("max_body_bytes", 1024 * 1024 + 1),
    ("content_types", "application/json"),
    ("content_types", ["json"]),
    ("content_types", ["Application/JSON"]),
    ("content_types", [None]),
    ("content_types", ["text/*", "text/*"]),
    ("content_types", ["text/plain"] * 51),
    ("content_types", {"a": 1}),
    ("idempotency_window_s", 0),
    ("idempotency_window_s", 31 * 86_400 + 1),
    ("max_future_days", 0),
    ("max_future_days", 3661),
    ("retention_days", 0),
    ("retention_days", 3651),
    ("retention_days", [7]),
    ("dead_retention_days", False),
    ("dead_retention_days", -HUGE),
    ("default_retry", "sometimes"),
    ("default_retry", []),
    ("default_retry", [True]),
    ("default_retry", [HUGE]),
    ("default_retry", {"base": 1}),
    ("default_retry", 5),
    ("nonsense", 1),
    ("id", 1),
    ("version", 3),
    ("half \ud800", 1),
]


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda part: ascii(part)[:40])
def test_a_bad_field_is_named_and_nothing_is_stored(
    admin: Api, method: str, field: str, value: object
) -> None:
    if method == "PATCH":
        admin.put(URL)
    before = list(Channel.objects.values())
    answer = admin.call(method, URL, {field: value})
    assert (answer.status, answer.json["code"]) == (422, "invalid_fields")
    assert answer.json["field"] == field.encode("utf-8", "backslashreplace").decode()
    assert answer.is_problem
    assert list(Channel.objects.values()) == before


def test_all_invalid_fields_are_reported_at_once(admin: Api) -> None:
    answer = admin.put(URL, {"paused": 1, "kind": "stack", "what": 1})
    assert [fault["field"] for fault in answer.json["errors"]] == ["what", "kind", "paused"]


@pytest.mark.parametrize(
    "slug", ["Orders", "-orders", "or ders", "orders%2Fx", "x" * 101, "%00", "ordérs", "a%0Ab"]
)
def test_a_bad_name_is_refused(admin: Api, slug: str) -> None:
    answer = admin.put(f"channels/{slug}")
    assert answer.status in {404, 422}
    assert answer.is_problem
    assert not Channel.objects.exists()


def test_the_list_is_newest_first_and_goes_both_ways(admin: Api) -> None:
    slugs = [ChannelFactory.create().slug for _ in range(5)][::-1]
    first = admin.get("channels?limit=2").json
    assert [item["slug"] for item in first["items"]] == slugs[:2]
    assert first["previous"] is None
    second = admin.get(f"channels?cursor={first['next']}").json
    assert [item["slug"] for item in second["items"]] == slugs[2:4]
    last = admin.get(f"channels?cursor={second['next']}").json
    assert [item["slug"] for item in last["items"]] == slugs[4:]
    assert last["next"] is None
    back = admin.get(f"channels?cursor={last['previous']}").json
    assert back["items"] == second["items"]


def test_the_list_holds_what_exists_for_the_caller(db: None) -> None:
    inner, outer = ChannelFactory.create(), ChannelFactory.create(external=True)
    team = TeamFactory.create()

    def seen(**key: object) -> set[str]:
        api = Api(ApiKeyFactory.create(scopes=["read"], **key))
        return {item["slug"] for item in api.get("channels").json["items"]}

    assert seen() == {inner.slug, outer.slug}
    assert seen(channels=[inner.slug]) == {inner.slug}
    assert seen(team=team) == {outer.slug}
    assert seen(team=team, channels=[inner.slug]) == {inner.slug}


@pytest.mark.seed("S1-21")
def test_an_internal_channel_does_not_exist_for_a_team_without_a_grant(db: None) -> None:
    inner, outer = ChannelFactory.create(), ChannelFactory.create(external=True)
    team = Api(ApiKeyFactory.create(team=TeamFactory.create(), scopes=["register"]))
    assert team.get(f"channels/{inner.slug}").status == 404
    assert team.get(f"channels/{outer.slug}").status == 200
    body = {"url": "http://127.0.0.1:9/"}
    assert team.put(f"channels/{inner.slug}/consumers/us", body).status == 404
    assert team.put(f"channels/{outer.slug}/consumers/us", body).status == 201


@pytest.mark.parametrize("scope", ["publish", "register", "receive", "read", "replay"])
def test_only_operators_write_channels(db: None, scope: str) -> None:
    api = Api(ApiKeyFactory.create(scopes=[scope]))
    ChannelFactory.create(slug="orders")
    assert api.put(URL, {"description": "x"}).status == 403
    assert api.patch(URL, {"description": "x"}).json["code"] == "missing_scope"
    assert api.get(URL).status == 200
