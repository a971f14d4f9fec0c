"""Teams: creating, inviting, joining, changing roles, leaving; always with an owner."""

import io
import logging
import re
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import Permission, User
from django.core import mail
from django.test import Client
from django.utils import timezone

from channels_app.core.errors import Refused
from channels_app.models import AuditEntry, Invitation, Membership, Team
from channels_app.registry import teams
from tests.support import people
from tests.support.factories import TeamFactory
from tests.support.principals import acting

pytestmark = pytest.mark.django_db

PASSWORD = "correct horse battery"


@pytest.fixture
def owner(team: Team) -> Client:
    return people.person("olive", team, "owner")


def link_of(owner: Client, **values: Any) -> str:
    """Return the path of a new invitation, which is shown once."""
    form = {"role": "editor", "days": "7", "email": "", **values}
    html = owner.post("/portal/acme/members/invite/", form).content.decode()
    found = re.search(r"http://[^/]+(/portal/-/join/[\w-]{43}/)", html)
    assert found, html
    return found[1]


def member(name: str) -> Membership:
    return Membership.objects.get(user__username=name)


def audited() -> list[tuple[str, str, str]]:
    entries = AuditEntry.objects.order_by("id")
    return list(entries.values_list("actor", "action", "target"))


def test_an_invitation_makes_a_member_once(owner: Client, team: Team) -> None:
    link = link_of(owner)
    nora, tim = people.person("nora"), people.person("tim")
    assert "Join Acme" in nora.get(link).content.decode()

    assert nora.post(link)["Location"] == "/portal/acme/"

    assert member("nora").role == "editor"
    assert tim.get(link).status_code == 404
    tim.post(link)
    assert not Membership.objects.filter(user__username="tim").exists()
    number = Invitation.objects.get().pk
    assert audited() == [
        ("user:olive", "invitation.create", f"invitation:acme/{number}"),
        ("user:nora", "invitation.accept", "membership:acme/nora"),
    ]
    assert set(AuditEntry.objects.values_list("team_id", flat=True)) == {team.pk}


def test_an_invitation_link_is_not_stored_and_viewing_does_not_use_it_up(owner: Client) -> None:
    link = link_of(owner)
    token = link.split("/")[-2]

    stored = str(list(Invitation.objects.values())) + str(list(AuditEntry.objects.values()))
    assert token not in stored
    assert token not in owner.get("/portal/acme/members/").content.decode()
    Client().get(link)
    owner.post(link)  # a member already
    assert Invitation.objects.get().accepted_at is None
    assert Membership.objects.count() == 1


@pytest.mark.parametrize("how", ["ended", "taken back"])
def test_an_expired_invitation_is_refused(owner: Client, how: str) -> None:
    link = link_of(owner)
    number = Invitation.objects.get().pk
    if how == "ended":
        Invitation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    else:
        owner.post(f"/portal/acme/invitations/{number}/revoke/")
    nora = people.person("nora")

    assert nora.get(link).status_code == 404
    nora.post(link)

    assert Membership.objects.count() == 1


def test_only_an_invited_person_can_create_an_account(owner: Client) -> None:
    link, client = link_of(owner), Client()
    form = {"username": "nora", "email": "nora@example.com"}
    form |= {"password1": PASSWORD, "password2": PASSWORD}
    for wrong in ("", "/portal/", "/portal/-/join/" + "x" * 43 + "/", "//evil.example/"):
        client.post("/accounts/signup/", {**form, "next": wrong})
    assert not User.objects.filter(username="nora").exists()

    answer = client.post("/accounts/signup/", {**form, "next": link})

    assert answer["Location"] == link
    client.post(link)
    assert member("nora").role == "editor"


def test_a_leaked_invitation_cannot_be_reused(owner: Client) -> None:
    link = link_of(owner)
    for number in range(5):
        form = {"username": f"n{number}", "email": f"n{number}@example.com", "next": link}
        form |= {"password1": PASSWORD, "password2": PASSWORD}
        answer = Client().post("/accounts/signup/", form)

    assert "by invitation" in answer.content.decode()
    assert User.objects.filter(username__startswith="n").count() == 3
    assert audited()[-1][:2] == ("user:n2", "invitation.sign_up")
    assert "n2" in owner.get("/portal/acme/audit/").content.decode()


def test_the_log_contains_no_valid_invitation_links(
    owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = link_of(owner)
    log = io.StringIO()
    (handler,) = [handler for handler in logging.getLogger().handlers if handler.name == "stderr"]
    monkeypatch.setattr(handler, "stream", log)
    client = Client(enforce_csrf_checks=True)

    client.post(link)
    referer = f"https://elsewhere.example/?next={quote(link, safe='')}"
    client.post(link, secure=True, headers={"Referer": referer})

    lines = log.getvalue().splitlines()
    assert len(lines) == 2
    assert all("/portal/-/join/..." in line for line in lines)
    assert link.split("/")[-2] not in log.getvalue()


def test_an_invitation_is_mailed_if_mail_is_configured(owner: Client, settings: Any) -> None:
    link_of(owner, email="nora@example.com")
    assert mail.outbox == []
    settings.CAN_MAIL = True

    link = link_of(owner, email="nora@example.com")

    (sent,) = mail.outbox
    assert sent.to == ["nora@example.com"]
    assert link in str(sent.body)


def test_a_failed_mail_keeps_the_invitation(owner: Client, settings: Any) -> None:
    settings.CAN_MAIL, settings.EMAIL_PORT = True, 1
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    form = {"role": "viewer", "days": "7", "email": "nora@example.com"}

    html = owner.post("/portal/acme/members/invite/", form).content.decode()

    assert "No mail was sent" in html
    assert "/portal/-/join/" in html


def test_invalid_input_is_kept_in_the_form(owner: Client) -> None:
    form = {"role": "editor", "days": "7", "email": "no address"}

    answer = owner.post("/portal/acme/members/invite/", form)

    assert answer.status_code == 422
    assert 'value="no address"' in answer.content.decode()
    assert not Invitation.objects.exists()


def test_the_number_of_invitations_is_limited(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "MAX_OPEN", 1)
    teams.invite("acme", {}, principal=acting("user:o"), inviter="o")

    with pytest.raises(Refused, match="revoke some first"):
        teams.invite("acme", {}, principal=acting("user:o"), inviter="o")


@pytest.mark.parametrize(
    ("limit", "team_slug", "inviter"),
    [("MAX_OF_TEAM", "acme", "otto"), ("MAX_OF_PERSON", "blue", "olive")],
)
def test_revoking_invitations_does_not_reset_the_mail_limit(
    team: Team, monkeypatch: pytest.MonkeyPatch, limit: str, team_slug: str, inviter: str
) -> None:
    TeamFactory.create(slug="blue")
    monkeypatch.setattr(teams, limit, 1)
    first = teams.invite("acme", {}, principal=acting("user:olive"), inviter="olive").row
    teams.revoke_invitation("acme", first.pk, principal=acting("user:olive"))

    with pytest.raises(Refused, match="within a day"):
        teams.invite(team_slug, {}, principal=acting("a"), inviter=inviter)

    teams.invite("blue", {}, principal=acting("a"), inviter="otto")
    Invitation.objects.update(created_at=timezone.now() - timedelta(days=1, seconds=1))
    teams.invite(team_slug, {}, principal=acting("a"), inviter=inviter)


def test_an_owner_changes_roles_and_removes_members(team: Team, owner: Client) -> None:
    people.person("vera", team, "viewer")
    vera = member("vera").pk

    owner.post(f"/portal/acme/members/{vera}/role/", {"role": "editor"})
    assert member("vera").role == "editor"
    owner.post(f"/portal/acme/members/{vera}/role/", {"role": "king"})
    assert member("vera").role == "editor"
    owner.post(f"/portal/acme/members/{vera}/remove/")

    assert Membership.objects.count() == 1
    assert [action for _, action, _ in audited()] == ["membership.change", "membership.end"]


def test_the_last_active_owner_cannot_leave_or_lose_the_role(team: Team, owner: Client) -> None:
    people.person("vera", team, "editor")
    people.person("otto", team, "owner")
    User.objects.filter(username="otto").update(is_active=False)
    olive = member("olive").pk

    for address in (f"members/{olive}/role/", f"members/{olive}/remove/", "members/leave/"):
        answer = owner.post(f"/portal/acme/{address}", {"role": "viewer"}, follow=True)
        assert "would have no owner" in answer.content.decode(), address

    assert member("olive").role == "owner"
    assert AuditEntry.objects.count() == 0


@pytest.mark.parametrize("how", ["leave", "remove", "demote"])
def test_a_removed_member_cannot_return_by_an_own_invitation(
    team: Team, owner: Client, how: str
) -> None:
    otto = people.person("otto", team, "owner")
    own, other = link_of(otto, role="owner"), link_of(owner)
    number = member("otto").pk
    if how == "leave":
        otto.post("/portal/acme/members/leave/")
    elif how == "remove":
        owner.post(f"/portal/acme/members/{number}/remove/")
    else:
        owner.post(f"/portal/acme/members/{number}/role/", {"role": "viewer"})

    assert otto.get(own).status_code == 404
    otto.post(own)
    assert not Membership.objects.filter(user__username="otto", role="owner").exists()
    assert Client().get(other).status_code == 200
    taken = Invitation.objects.get(invited_by="otto")
    who = "otto" if how == "leave" else "olive"
    assert (f"user:{who}", "invitation.revoke", f"invitation:acme/{taken.pk}") in audited()


def test_a_new_owner_keeps_pending_invitations(team: Team, owner: Client) -> None:
    people.person("vera", team, "viewer")
    teams.invite("acme", {}, principal=acting("user:vera"), inviter="vera")

    teams.set_role("acme", member("vera").pk, "owner", principal=acting("user:olive"))

    assert Invitation.objects.get().revoked_at is None


def test_a_viewer_may_leave(team: Team, owner: Client) -> None:
    viewer = people.person("vera", team, "viewer")

    viewer.post("/portal/acme/members/leave/")

    assert viewer.get("/portal/acme/").status_code == 404
    assert audited() == [("user:vera", "membership.end", "membership:acme/vera")]


def test_with_open_signup_everybody_may_create_a_team(settings: Any) -> None:
    settings.SIGNUP = "open"
    client = people.person("nora")

    answer = client.post("/portal/-/new/", {"name": "Nora & Co", "slug": "nora"})

    assert answer["Location"] == "/portal/nora/"
    assert member("nora").role == "owner"
    assert audited() == [("user:nora", "team.create", "team:nora")]


def test_without_open_signup_only_permitted_users_create_teams() -> None:
    client = people.person("nora")
    assert client.get("/portal/-/new/").status_code == 403
    assert client.post("/portal/-/new/", {"name": "N", "slug": "n"}).status_code == 403

    nora = User.objects.get(username="nora")
    nora.user_permissions.add(Permission.objects.get(codename="add_team"))

    assert client.post("/portal/-/new/", {"name": "N", "slug": "n"}).status_code == 302


@pytest.mark.parametrize(
    ("slug", "sentence"),
    [("acme", "has this name already"), ("-", "begins with a letter"), ("Ä b", "lower-case")],
)
def test_an_invalid_name_is_reported_at_its_field(
    team: Team, settings: Any, slug: str, sentence: str
) -> None:
    settings.SIGNUP = "open"

    answer = people.person("nora").post("/portal/-/new/", {"name": "Kept", "slug": slug})

    html = answer.content.decode()
    assert answer.status_code == 422
    assert sentence in html
    assert 'value="Kept"' in html
