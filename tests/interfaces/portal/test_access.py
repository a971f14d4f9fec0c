"""Access to every route of the portal, including routes added later."""

import re
from html import unescape
from urllib.parse import urljoin

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from channels_app.models import Membership
from channels_app.portal.access import TeamView
from tests.interfaces.portal.test_others import belongings
from tests.support import people
from tests.support.factories import TeamFactory
from tests.support.snapshot import undone

pytestmark = pytest.mark.django_db

STRICT = (
    "default-src 'none'; connect-src 'self'; font-src 'self'; img-src 'self' data:; "
    "script-src 'self'; style-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)


def test_every_route_of_a_team_checks_membership() -> None:
    assert people.team_routes()
    assert [path for path, view in people.team_routes() if not issubclass(view, TeamView)] == []


def test_refusals_lead_on_and_name_no_team() -> None:
    """Which users are refused where is in tests/golden/access.txt."""
    team = TeamFactory.create(slug="acme")
    people.person("olive", team, "owner")
    page = "/portal/acme/keys/new/"
    assert Client().get(page)["Location"] == f"/accounts/login/?next={page}"
    stranger = people.person("sam", TeamFactory.create(slug="other"), "owner")
    assert "acme" not in stranger.get(page).content.decode()
    viewer = people.person("victor", team, "viewer").post(page)
    assert viewer.status_code == 403
    assert "olive" in viewer.content.decode(), "who can help is not named"


def check(html: str, page: str) -> None:
    """Check that a page runs no inline scripts and loads nothing from other hosts."""
    assert not re.search(r"""<style|<script(?![^>]*src="/)|\sstyle=|\son\w+=""", html), page
    assert not re.search(r"""(?:src|href|action)=["']?(?:https?:)?//""", html), page


LINK = re.compile(r'href="((?:/portal/|\?)[^"#]*)')
FORM = re.compile(r'<form method="post"(?: action="([^"]*)")?')


@pytest.mark.slow("follows every link and button")
@pytest.mark.parametrize("role", ["viewer", "editor"])
def test_pages_offer_only_what_their_user_may_do(role: str) -> None:
    """Viewers may only leave the team; each link and button works, and nothing is inline."""
    team = TeamFactory.create(slug="acme")
    values = belongings(team) | {"team": "acme"}
    client = people.person("mia", team, role)
    offered: dict[str, set[str]] = {"GET": set(), "POST": set()}
    for path, _ in people.team_routes():
        page = re.sub(r"<\w+:(\w+)>", lambda found: values[found[1]], path)
        answer = client.get(page)
        if answer.status_code == 200:
            html = answer.content.decode()
            check(html, page)
            assert answer["Content-Security-Policy"] == STRICT
            assert "no-store" in answer["Cache-Control"]
            main = html.partition("<main")[2]
            assert not re.search(r"whsec_\w{9}", main), page
            for method, places in (("GET", LINK.findall(main)), ("POST", FORM.findall(main))):
                offered[method].update(urljoin(page, unescape(place)) for place in places)
    for method, offers in offered.items():
        for place in offers:
            with undone():
                assert client.generic(method, place).status_code in {200, 302, 422}, place
    if role == "viewer":
        assert offered["POST"] == {"/portal/acme/members/leave/"}


def test_a_removed_role_ends_at_the_next_request() -> None:
    team = TeamFactory.create(slug="acme")
    client = people.person("mia", team, "owner")
    assert client.get("/portal/acme/").status_code == 200

    Membership.objects.all().delete()

    assert client.get("/portal/acme/").status_code == 404


def test_a_single_team_is_opened_and_several_are_listed() -> None:
    acme, blue = TeamFactory.create(slug="acme"), TeamFactory.create(slug="blue")
    client = people.person("mia", acme)
    assert client.get("/portal/")["Location"] == "/portal/acme/"
    assert b"acme" in client.get("/portal/?all").content

    Membership.objects.create(team=blue, user=User.objects.get(username="mia"))

    offered = client.get("/portal/").content.decode()
    assert reverse("portal:home", args=["acme"]) in offered
    assert reverse("portal:home", args=["blue"]) in offered


def test_a_user_without_a_team_is_told_how_to_join() -> None:
    assert "invitation" in people.person("nora").get("/portal/").content.decode()


def test_a_cross_site_form_changes_nothing_and_explains() -> None:
    client = Client(enforce_csrf_checks=True)

    answer = client.post("/accounts/logout/")

    assert answer.status_code == 403
    assert "send the form once more" in answer.content.decode()
