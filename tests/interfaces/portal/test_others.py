"""Objects of other teams: a member who uses their names in addresses gets 404."""

import re
from collections.abc import Iterator

import pytest
from django.test import Client

from channels_app.core import ids
from channels_app.models import Invitation, Membership, Team
from channels_app.registry import teams
from tests.interfaces.api.test_tenants import TABLES
from tests.support import people, world
from tests.support.factories import ApiKeyFactory, ConsumerFactory, DeliveryFactory, TeamFactory
from tests.support.principals import acting
from tests.support.snapshot import rows, undone

pytestmark = pytest.mark.django_db

FOR_EVERYBODY = {
    "/portal/<str:team>/webhooks/-/catalogue/<str:channel>/",
    "/portal/<str:team>/webhooks/-/new/<str:channel>/",
}
"""Every team may view an external channel and register on it."""
FORGIVING = ("<int:member>", "<int:invitation>")
"""A second owner may be faster: an object that is gone leads to a message in the list of members,
not to 404."""
NOBODY = "987654321"


def belongings(team: Team) -> dict[str, str]:
    """Create one object of every kind for a team; return them by the names of route parameters."""
    made = world.make(team)
    queued = DeliveryFactory.create(consumer=made.consumer)
    people.person("somebody", team, "viewer")
    membership = Membership.objects.get(team=team)
    receive_request = {"email": "new@example.com", "role": "viewer"}
    invited = teams.invite(team.slug, receive_request, principal=acting("test"), inviter="somebody")
    key = ApiKeyFactory.create(team=team)
    return {
        **made.parameters,
        "delivery": made.parameters["delivery_id"],
        "queued": ids.to_public(ids.DELIVERY, queued.id),
        "member": str(membership.pk),
        "invitation": str(invited.row.pk),
        "key_id": key.key_id,
    }


def addresses(team: str, found: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield route, method and address of each route with objects, filled with these objects."""
    for path, view in people.team_routes():
        names = re.findall(r"<\w+:(\w+)>", path)
        if names == ["team"] or path in FOR_EVERYBODY:
            continue
        address = path.replace("<str:team>", team)
        for name in names[1:]:
            is_taken_back = name == "delivery" and path.endswith("/cancel/")
            value = found["queued" if is_taken_back else name]
            address = re.sub(rf"<\w+:{name}>", value, address)
        for method in ("get", *people.CHANGING):
            if hasattr(view, method):
                yield path, method.upper(), address


def test_owners_reach_the_same_urls() -> None:
    """Without this, the tests below would prove nothing."""
    team = TeamFactory.create(slug="theirs")
    found = belongings(team)
    owner = people.person("olga", team, "owner")
    led = set()
    for path, method, address in addresses("theirs", found):
        with undone():
            if owner.generic(method, address).status_code != 404:
                led.add(path)
    assert {path for path, _, _ in addresses("theirs", found)} == led


@pytest.mark.trap("another tenant's object by its id")
def test_objects_of_others_are_404_under_the_teams_urls() -> None:
    theirs = belongings(TeamFactory.create(slug="theirs"))
    me = people.person("mia", TeamFactory.create(slug="mine"), "owner")
    before = rows(TABLES, but="last_used_at")
    for path, method, address in addresses("mine", theirs):
        if any(name in path for name in FORGIVING):
            nobodys = re.sub(r"/\d+/", f"/{NOBODY}/", address)
            assert told(me, address) == told(me, nobodys), path
            continue
        answer = me.generic(method, address)
        assert answer.status_code == 404, (method, path)
        assert theirs["client_id"] not in answer.content.decode()
    assert rows(TABLES, but="last_used_at") == before
    assert list(Membership.objects.filter(team__slug="theirs").values_list("role")) == [("viewer",)]
    assert Invitation.objects.filter(revoked_at=None).exists()
    pages = [path for path, view in people.team_routes() if hasattr(view, "get")]
    own = [path.replace("<str:team>", "mine") for path in pages if path.count("<") == 1]
    shown = "".join(me.get(page).content.decode() for page in own)
    assert [name for name in ("client_id", "producer", "key_id") if theirs[name] in shown] == []


def told(client: Client, address: str) -> list[str]:
    """Return the messages that the list of members shows afterwards."""
    answer = client.post(address, {"role": "editor"}, follow=True)
    return [str(message) for message in answer.context["messages"]]


@pytest.mark.trap("another tenant's object by its id")
def test_objects_of_others_are_404_under_an_own_webhook() -> None:
    """Deliveries and replays are addressed below a webhook: mine gives no access to theirs."""
    theirs = belongings(TeamFactory.create(slug="theirs"))
    mine = TeamFactory.create(slug="mine")
    me = people.person("mia", mine, "owner")
    webhook = ConsumerFactory.create(team=mine)
    mixed = {**theirs, "channel": webhook.channel.slug, "client_id": webhook.client_id}
    before = rows(TABLES, but="last_used_at")
    inner = [
        one for one in addresses("mine", mixed) if re.search(r"<str:(delivery|replay_id)>", one[0])
    ]
    assert len(inner) > 3
    for path, method, address in inner:
        assert me.generic(method, address).status_code == 404, (method, path)
    assert rows(TABLES, but="last_used_at") == before
