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


def test_only_matching_and_valid_preconditions_pass(admin: Api) -> None:
    etag = admin.put(URL, If_None_Match="*").etag
    assert admin.put(URL, If_None_Match="*").status == 412
    assert admin.patch(URL, {"description": "x"}, If_Match=f'"77", {etag}').status == 200
    assert admin.patch(URL, {"description": "y"}, If_Match="*").status == 200
    assert admin.put("channels/other", If_Match="*").status == 412
    assert not Channel.objects.filter(slug="other").exists()
    for name in ("If_Match", "If_None_Match"):
        answer = admin.patch(URL, {"description": "x"}, **{name: "3"})
        assert (answer.status, answer.json["field"]) == (422, name.replace("_", "-"))


HUGE = 10**40
BAD = [
    *(("description", value) for value in (5, "x" * 2001, "nul\x00", "half \ud800")),
    *(("exposure", value) for value in ("public", None, ["internal"])),
    *(("kind", value) for value in ("stack", True)),
    *(("ordering", value) for value in ("lifo", True)),
    *(("ordering_key_path", value) for value in ("a..b", ["a"])),
    *(("reorder_window_ms", value) for value in (-1, 5001, None)),
    *(("paused", value) for value in (1, "true", None)),
    ("encrypt_bodies", 0),
    ("require_idempotency_key", "yes"),
    *(("max_body_bytes", value) for value in (0, True, 1.5, HUGE, "100", 1024 * 1024 + 1)),
    *(("content_types", value) for value in ("application/json", ["json"], [None], {"a": 1})),
    *(("content_types", value) for value in (["text/*", "text/*"], ["text/plain"] * 51)),
    *(("idempotency_window_s", value) for value in (0, 31 * 86_400 + 1)),
    *(("max_future_days", value) for value in (0, 3662)),
    *(("retention_days", value) for value in (0, 3651, [7])),
    *(("dead_retention_days", value) for value in (False, -HUGE)),
    *(("default_retry", value) for value in ("sometimes", [], [True], [HUGE], {"base": 1}, 5)),
    ("nonsense", 1),
    ("id", 1),
    ("version", 3),
    ("half \ud800", 1),
]
"""One value for each way in which a field can be wrong."""


def test_a_bad_field_is_named_and_nothing_is_stored(admin: Api) -> None:
    for field, value in BAD:
        answer = admin.put(URL, {field: value})
        assert (answer.status, answer.json["code"]) == (422, "invalid_fields"), (field, value)
        assert answer.json["field"] == field.encode("utf-8", "backslashreplace").decode()
        assert answer.is_problem
    assert not Channel.objects.exists()
    admin.put(URL)
    before = Channel.objects.values().get()
    for field, value in BAD[::5]:
        assert admin.patch(URL, {field: value}).json["code"] == "invalid_fields", (field, value)
    assert Channel.objects.values().get() == before


def test_all_invalid_fields_are_reported_at_once(admin: Api) -> None:
    answer = admin.put(URL, {"paused": 1, "kind": "stack", "what": 1})
    assert [fault["field"] for fault in answer.json["errors"]] == ["what", "kind", "paused"]


def test_a_bad_name_is_refused(admin: Api) -> None:
    for slug in ("Orders", "-orders", "or ders", "orders%2Fx", "x" * 101, "%00", "ordérs"):
        answer = admin.put(f"channels/{slug}")
        assert answer.status in {404, 422}
        assert answer.is_problem
    assert not Channel.objects.exists()


def test_the_list_is_newest_first_and_goes_both_ways(admin: Api) -> None:
    slugs = [ChannelFactory.create().slug for _ in range(3)][::-1]
    first = admin.get("channels?limit=2").json
    assert [item["slug"] for item in first["items"]] == slugs[:2]
    last = admin.get(f"channels?cursor={first['next']}").json
    assert [item["slug"] for item in last["items"]] == slugs[2:]
    assert (first["previous"], last["next"]) == (None, None)
    assert admin.get(f"channels?cursor={last['previous']}").json["items"] == first["items"]


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
