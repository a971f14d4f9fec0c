"""Keys in the portal: no more rights than the team has, shown once, refused when revoked."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from channels_app.models import ApiKey, Channel, Producer, Team
from channels_app.portal.views import keys as views
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    ProducerFactory,
    TeamFactory,
)

pytestmark = pytest.mark.django_db

NEW = "/portal/acme/keys/new/"
TEXT = re.compile(r"hsk_[a-z2-7]{16}_[a-z2-7]{52}")


@pytest.fixture
def orders() -> Channel:
    return ChannelFactory.create(slug="orders", external=True)


@pytest.fixture
def shop(team: Team) -> Producer:
    """A producer that an operator allowed to publish on one channel."""
    producer = ProducerFactory.create(slug="shop", team=team)
    ApiKeyFactory.create(producer=producer, label="granted", channels=["orders"])
    return producer


def wish(**changes: Any) -> dict[str, Any]:
    wished = {"label": "till", "owner": "producer:shop", "scopes": ["publish"], "days": "90"}
    return {**wished, "channels": ["orders"], **changes}


def newest() -> ApiKey:
    return ApiKey.objects.latest("id")


def made(answer: Any) -> str:
    """Return the text of the key that a response shows."""
    html = answer.content.decode()
    assert answer.status_code == 200, html
    found = TEXT.findall(html)
    assert len(found) == 2, "the text and the line that uses it"
    assert found[0] == found[1]
    return str(found[0])


def ticked(html: str) -> set[str]:
    """Return the channels that are selected in the form."""
    boxes = re.findall(r'<input[^>]*name="channels"[^>]*>', html)
    assert boxes
    return {box.split('value="')[1].split('"')[0] for box in boxes if " checked" in box}


def test_a_key_belongs_to_its_team(editor: Client, team: Team, orders: Channel) -> None:
    made(editor.post(NEW, wish(owner="team", scopes=["read", "replay"], channels=["*"], days="")))

    key = newest()
    assert (key.team, key.producer, key.channels, key.expires_at) == (team, None, [], None)


def test_a_key_beyond_the_teams_grants_is_refused_and_input_kept(
    editor: Client, team: Team, orders: Channel, shop: Producer
) -> None:
    ChannelFactory.create(slug="inner")
    ChannelFactory.create(slug="open", external=True)
    ProducerFactory.create(slug="bank", team=TeamFactory.create(slug="other"))
    ApiKeyFactory.create(team=team, label="reads", scopes=["read"], channels=["payroll"])
    ours, read = {"owner": "team"}, {"scopes": ["read"]}
    wishes: list[tuple[dict[str, Any], str]] = [
        ({"scopes": ["admin"]}, "not one of the available choices"),
        ({"channels": ["inner"]}, "inner is not one of the"),
        ({"channels": ["orders", "open"]}, "open is not one"),
        ({"channels": ["payroll"]}, "publish on payroll"),  # the team only reads it
        ({"channels": []}, "Choose channels, or all"),
        ({"channels": ["*", "orders"]}, "either all or some"),
        ({"scopes": ["publish", "read"]}, "cannot have the scope read"),
        # An external channel may become internal.
        (ours | read | {"channels": ["open"]}, "open is not one"),
        ({"owner": "producer:bank"}, "not one of the available"),
        (ours | {"channels": ["*"]}, "cannot have the scope publish"),
        ({"scopes": []}, "required"),
    ]
    for changes, sentence in wishes:
        answer = editor.post(NEW, wish(**changes))
        html = answer.content.decode()
        assert answer.status_code == 422
        assert sentence in html
        assert 'value="till"' in html
        still = {"*", "orders", "payroll"}.intersection(changes.get("channels", ["orders"]))
        assert ticked(html) == still
    assert [key.label for key in ApiKey.objects.all()] == ["granted", "reads"]


def test_all_channels_of_a_producer_are_its_named_grants(
    editor: Client, team: Team, orders: Channel, shop: Producer
) -> None:
    ChannelFactory.create(slug="news", external=True)
    ApiKeyFactory.create(producer=shop, channels=["news"])
    ApiKeyFactory.create(producer=shop, scopes=["read"], channels=["payroll"])
    ProducerFactory.create(slug="fresh", team=team)

    made(editor.post(NEW, wish(channels=["*"])))
    answer = editor.post(NEW, wish(owner="producer:fresh", channels=["*"]))

    assert newest().channels == ["news", "orders"]
    assert answer.status_code == 422
    assert "Name the channels" in answer.content.decode()


@pytest.mark.parametrize("days", ["90", ""])
def test_a_key_does_not_outlive_its_grant(
    editor: Client, team: Team, orders: Channel, days: str
) -> None:
    shop = ProducerFactory.create(slug="shop", team=team)
    ends = timezone.now() + timedelta(days=10)
    ApiKeyFactory.create(producer=shop, channels=["orders"], expires_at=ends)

    made(editor.post(NEW, wish(days=days)))

    first = newest()
    assert first.expires_at == ends
    made(editor.post(f"/portal/acme/keys/{first.key_id}/rotate/", {"overlap_s": "0"}))
    made(editor.post(NEW, wish(days=days)))
    assert newest().expires_at == ends


def test_the_form_lists_grantable_channels_and_scopes(
    editor: Client, team: Team, shop: Producer
) -> None:
    ApiKeyFactory.create(team=team, scopes=["read"], channels=["payroll"])
    ApiKeyFactory.create(team=team, scopes=["read"], channels=["secret"], revoked=True)
    ApiKeyFactory.create(producer=ProducerFactory.create(slug="bus", team=team))
    ProducerFactory.create(slug="new", team=team)
    ChannelFactory.create(slug="open", external=True)

    html = editor.get(NEW).content.decode()

    assert "orders: producer shop may publish" in html
    assert "open: producer bus may publish" in html
    assert "payroll: the team may read" in html
    assert "secret" not in html
    assert ticked(html) == set()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"scopes": ["admin"]}, "Ask an operator"),
        ({"scopes": ["sensitive"]}, "Ask an operator"),
        ({"scopes": ["read"], "revoked": True}, "create a new one"),
    ],
)
def test_a_revoked_key_or_one_from_operators_cannot_be_rotated_by_the_team(
    editor: Client, team: Team, values: dict[str, Any], sentence: str
) -> None:
    key = ApiKeyFactory.create(team=team, **values)

    answer = editor.post(f"/portal/acme/keys/{key.key_id}/rotate/", {"overlap_s": "0"})

    assert answer.status_code == 422
    assert sentence in answer.content.decode()
    assert ApiKey.objects.count() == 1


def test_expired_keys_do_not_hide_active_ones(
    editor: Client, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "MAX_SHOWN", 3)
    working = [ApiKeyFactory.create(team=team) for _ in range(2)]
    over = [ApiKeyFactory.create(team=team, revoked=True), ApiKeyFactory.create(team=team)]
    ApiKey.objects.filter(pk=over[1].pk).update(expires_at=timezone.now() - timedelta(minutes=1))

    html = editor.get("/portal/acme/keys/").content.decode()

    shown = [key.key_id in html for key in (*working, *over)]
    assert shown == [True, True, False, True]
    assert "only the newest expired and revoked ones" in html

    monkeypatch.setattr(views, "MAX_SHOWN", 1)
    html = editor.get("/portal/acme/keys/").content.decode()
    assert [key.key_id in html for key in (*working, *over)] == [True, True, False, False]
