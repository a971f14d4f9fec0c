"""Access to every route of the portal, including routes added later."""

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from channels_app.models import Membership
from channels_app.portal.access import TeamView
from tests.support import people
from tests.support.factories import TeamFactory

pytestmark = pytest.mark.django_db

STRICT = (
    "default-src 'none'; connect-src 'self'; font-src 'self'; img-src 'self' data:; "
    "script-src 'self'; style-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)

FOR_ALL = ["/portal/-/join/<str:token>/"]
"""Routes that need no account."""
OWN_BUSINESS = ["/portal/<str:team>/members/leave/"]
"""Routes that every member may use, whatever the role."""


def filled(path: str, team: str) -> str:
    """Return the address of a route, with a value for each parameter."""
    path = path.replace("<str:team>", team)
    return re.sub(r"<(?:(\w+):)?\w+>", lambda place: "1" if place[1] == "int" else "x", path)


def test_every_route_of_a_team_checks_membership() -> None:
    assert people.team_routes()
    assert [path for path, view in people.team_routes() if not issubclass(view, TeamView)] == []


def test_a_non_member_gets_404_on_every_route() -> None:
    people.person("olive", TeamFactory.create(slug="acme"), "owner")
    stranger = people.person("sam", TeamFactory.create(slug="other"), "owner")

    for path, view in people.team_routes():
        for method in ("get", *people.CHANGING):
            if hasattr(view, method):
                answer = stranger.generic(method.upper(), filled(path, "acme"))
                assert answer.status_code == 404, (method, path)
                assert "acme" not in answer.content.decode(), path


def test_an_operator_without_membership_gets_404() -> None:
    people.person("olive", TeamFactory.create(slug="acme"), "owner")
    client = Client()
    client.force_login(User.objects.create_superuser("olga"))

    assert client.get("/portal/acme/").status_code == 404


def test_anonymous_users_sign_in_and_return_to_their_page() -> None:
    TeamFactory.create(slug="acme")

    asked = [
        path
        for path, view in people.portal_routes()
        if hasattr(view, "get") and path not in FOR_ALL
    ]
    assert len(asked) > 20
    for path in asked:
        address = filled(path, "acme")
        answer = Client().get(address)
        assert answer.status_code == 302, path
        assert answer["Location"] == f"/accounts/login/?next={address}"


def test_a_viewer_is_refused_on_every_changing_route() -> None:
    team = TeamFactory.create(slug="acme")
    people.person("olive", team, "owner")
    viewer = people.person("victor", team, "viewer")

    assert [path for path, view in people.team_routes() if view.writer == "viewer"] == OWN_BUSINESS
    for path, view in people.team_routes():
        for method in people.CHANGING:
            if hasattr(view, method) and path not in OWN_BUSINESS:
                answer = viewer.generic(method.upper(), filled(path, "acme"))
                assert answer.status_code == 403, (method, path)
                assert "olive" in answer.content.decode(), "who can help is not named"


def test_a_removed_role_ends_at_the_next_request() -> None:
    team = TeamFactory.create(slug="acme")
    client = people.person("mia", team, "owner")
    assert client.get("/portal/acme/").status_code == 200

    Membership.objects.all().delete()

    assert client.get("/portal/acme/").status_code == 404


def test_pages_load_only_own_files_and_run_no_inline_scripts() -> None:
    team = TeamFactory.create(slug="acme")
    client = people.person("mia", team, "owner")

    for address in ("/portal/", "/portal/?all", "/portal/acme/", "/portal/acme/members/",
                    "/portal/acme/members/invite/", "/portal/acme/keys/", "/portal/acme/keys/new/",
                    "/portal/nothing/here/"):  # fmt: skip
        answer = client.get(address, follow=True)
        html = answer.content.decode()
        assert answer["Content-Security-Policy"] == STRICT
        assert not re.search(r"""<style|<script(?![^>]*src="/)|\sstyle=|\son\w+=""", html), address
        assert not re.search(r"""(?:src|href|action)=["']?(?:https?:)?//""", html), address


def test_pages_are_not_cached() -> None:
    team = TeamFactory.create(slug="acme")

    answer = people.person("mia", team).get("/portal/acme/")

    assert "no-store" in answer["Cache-Control"]


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
