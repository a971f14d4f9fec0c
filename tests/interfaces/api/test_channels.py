"""Channels: what a PUT keeps, and which channels a list holds."""

from tests.support.api import Api
from tests.support.factories import ApiKeyFactory, ChannelFactory, TeamFactory

URL = "channels/orders"


def test_put_keeps_the_paused_state_and_absent_limits_are_the_installations(admin: Api) -> None:
    shown = admin.put(URL, {"paused": True}).json
    assert (shown["retention_days"], shown["effective"]["retention_days"]) == (None, 30)
    assert admin.put(URL, {}).json["paused"] is True
    assert admin.patch(URL, {"paused": False}).json["paused"] is False


def test_a_known_version_is_not_sent_again(admin: Api) -> None:
    etag = admin.put(URL).etag
    for known, status in ((etag, 304), (f'W/{etag}, "99"', 304), ('"99"', 200)):
        assert admin.get(URL, If_None_Match=known).status == status, known


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
