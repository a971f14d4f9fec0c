"""API keys through API, console and portal: shown once, used, rotated, and refused when revoked."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from channels_app.models import ApiKey, AuditEntry, Producer, Team
from channels_app.registry import authentication
from tests.support import console, people
from tests.support.api import Api
from tests.support.factories import ApiKeyFactory, ChannelFactory, ProducerFactory, TeamFactory

pytestmark = pytest.mark.django_db

KEY = re.compile(r"hsk_[a-z2-7]{16}_[a-z2-7]{52}")
PAIR = re.compile(
    r"""aws_access_key_id["=: ]+(\w+).*aws_secret_access_key["=: ]+(\w{30,})""", re.DOTALL | re.I
)
Call = Callable[..., str]


def newest() -> ApiKey:
    return ApiKey.objects.latest("id")


def through_api(team: Team) -> Call:
    api, root = Api(ApiKeyFactory.create(admin=True)), "producers/shop/keys"

    def call(action: str, **values: Any) -> str:
        one = f"{root}/{newest().key_id}"
        match action:
            case "create":
                answer = api.post(root, {"channels": ["orders"], **values})
            case "rotate":
                answer = api.post(f"{one}/rotate", values)
            case "revoke":
                answer = api.delete(one)
            case _:
                answer = api.get(root)
        return answer.body.decode()

    return call


def through_console(team: Team) -> Call:
    client = console.operator()

    def call(action: str, **values: Any) -> str:
        key = newest()
        if action == "show":
            pages = (console.page_url(key), console.list_url(ApiKey), reverse("admin:index"))
            return "".join(console.look(client, page) for page in pages)
        form = {"label": "new", "producer": key.producer_id, "scopes": ["publish"]}
        form |= {"channels": "orders", "_form_submitted": "True"}
        place, row = ("add", []) if action == "create" else (action, [key.pk])
        url = reverse(f"admin:channels_app_apikey_{place}", args=row)
        return client.post(url, form | values).content.decode()

    return call


def through_portal(team: Team) -> Call:
    client = people.person("eddy", team, "editor")

    def call(action: str, **values: Any) -> str:
        form = {"label": "new", "owner": "producer:shop", "scopes": ["publish"], "days": "90"}
        form["channels"] = ["orders"]
        place = {"create": "new/", "show": ""}.get(action, f"{newest().key_id}/{action}/")
        send = client.get if action == "show" else client.post
        return send(f"/portal/acme/keys/{place}", form | values).content.decode()

    return call


@pytest.fixture(params=[through_api, through_console, through_portal])
def call(request: pytest.FixtureRequest) -> Call:
    """Create, rotate, revoke or show the newest key of the producer shop; return the answer."""
    team = TeamFactory.create(slug="acme")
    ChannelFactory.create(slug="orders", external=True)
    made: Call = request.param(team)
    # An operator lets the producer publish on this channel; its team may do so from then on.
    shop = ProducerFactory.create(slug="shop", team=team)
    ApiKeyFactory.create(producer=shop, channels=["orders"])
    return made


def key_in(answer: str) -> str:
    (text,) = set(KEY.findall(answer))
    return str(text)


def publish(key: str) -> int:
    return Api().post("channels/orders/messages", b"x", Authorization=f"Bearer {key}").status


@pytest.mark.seed("S0-11")
def test_a_key_is_shown_once_used_rotated_and_revoked(call: Call) -> None:
    first = key_in(call("create"))
    key = newest()
    assert (key.producer_id, key.scopes) == (Producer.objects.get().pk, ["publish"])
    assert key.channels == ["orders"]
    for stored in (ApiKey, AuditEntry):
        assert first.rpartition("_")[2] not in str(list(stored._default_manager.values()))
    assert key.key_id in call("show")
    assert not KEY.search(call("show"))
    assert publish(first) == 202

    second = key_in(call("rotate", overlap_s=3600))
    assert (publish(first), publish(second)) == (202, 202)
    key.refresh_from_db()
    assert key.expires_at is not None
    assert abs(key.expires_at - timezone.now() - timedelta(hours=1)) < timedelta(minutes=1)
    third = key_in(call("rotate", overlap_s=0))
    assert (publish(second), publish(third)) == (401, 202)
    assert (newest().scopes, newest().channels) == (["publish"], ["orders"])

    call("revoke")
    assert publish(third) == 401
    assert "revoked" in call("show")
    done = AuditEntry.objects.order_by("id").values_list("action", flat=True)
    assert [done.first(), done.last()] == ["key.create", "key.revoke"]
    (actor,) = set(AuditEntry.objects.values_list("actor", flat=True))
    assert re.fullmatch(r"key:\w+|user:(olga|eddy)", actor)
    assert set(AuditEntry.objects.values_list("team_id", flat=True)) == {Team.objects.get().pk}


def test_a_key_for_sqs_clients_shows_both_values_once(call: Call) -> None:
    found = PAIR.search(call("create", sigv4=True))
    assert found is not None
    verified = authentication.sigv4_secret(found[1])
    assert verified is not None
    assert verified[1] == found[2]
    assert found[2] not in call("show")
    assert not PAIR.search(call("create"))
