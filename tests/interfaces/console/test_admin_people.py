"""The audit log records the console's changes to users, but not their passwords."""

from typing import Any

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from channels_app.models import AuditEntry, Membership
from tests.support import console
from tests.support.factories import TeamFactory

pytestmark = pytest.mark.django_db

JOINED = ("date_joined", "initial-date_joined")
PASSWORD = "a rather long password 17"


def test_a_user_is_created_without_showing_the_password(operator: Client) -> None:
    form = {"username": "nina", "password1": PASSWORD, "password2": PASSWORD}
    answer = operator.post(reverse("admin:auth_user_add"), form | {"usable_password": "true"})
    assert answer.status_code == 302, answer.context["adminform"].errors

    entry = AuditEntry.objects.get(action="user.create")
    assert (entry.actor, entry.target) == ("user:olga", "user:nina")
    assert entry.after is not None
    assert entry.after["username"] == "nina"
    assert PASSWORD not in str(entry.after)


def form_of(user: User) -> dict[str, Any]:
    """Return a user's form as the page sends it, without addresses and second factors."""
    joined = f"{user.date_joined:%Y-%m-%d}", f"{user.date_joined:%H:%M:%S}"
    return {
        "username": user.username,
        "email": user.email,
        "is_active": "on",
        **{f"{name}_{n}": joined[n] for name in JOINED for n in (0, 1)},
        **console.inline("memberships"),
        **console.inline("emailaddress_set"),
        **console.inline("authenticator_set"),
    }


def test_permission_changes_are_audited_with_old_and_new_values(operator: Client) -> None:
    nina = User.objects.create_user("nina")
    group = Group.objects.create(name="night shift")
    form = form_of(nina) | {"is_staff": "on", "groups": [group.pk]}
    answer = operator.post(reverse("admin:auth_user_change", args=[nina.pk]), form)
    assert answer.status_code == 302, answer.context["adminform"].errors

    entry = AuditEntry.objects.get(action="user.update")
    assert entry.before is not None
    assert entry.after is not None
    assert (entry.before["is_staff"], entry.after["is_staff"]) == (False, True)
    assert (entry.before["groups"], entry.after["groups"]) == ([], ["night shift"])


def test_password_and_deactivation_changes_are_audited(operator: Client) -> None:
    nina = User.objects.create_user("nina", email="nina@example.com")
    nina.groups.add(Group.objects.create(name="night shift"))
    form = {"password1": PASSWORD, "password2": PASSWORD, "usable_password": "true"}
    operator.post(reverse("admin:auth_user_password_change", args=[nina.pk]), form)
    operator.post(reverse("admin:auth_user_delete", args=[nina.pk]), {"post": "yes"})

    actions = AuditEntry.objects.order_by("id").values_list("action", "target")
    assert list(actions) == [("user.set_password", "user:nina"), ("user.delete", "user:nina")]
    assert not User.objects.filter(username="nina").exists()
    before = AuditEntry.objects.get(action="user.delete").before
    assert before is not None
    assert before["email"] == "nina@example.com"
    assert before["groups"] == ["night shift"]
    assert before["password"] == "(not kept)"


def written() -> list[tuple[str, str, str]]:
    """Return actor, action and target of each entry, oldest first."""
    entries = AuditEntry.objects.order_by("id")
    return list(entries.values_list("actor", "action", "target"))


def test_changed_mail_addresses_are_audited(operator: Client) -> None:
    """Whoever controls a user's e-mail address can request a new password."""
    nina = User.objects.create_user("nina", "nina@example.com")
    address = EmailAddress.objects.create(user=nina, email="nina@example.com", primary=True)
    row = {"id": address.pk, "email": "evil@example.com", "primary": "on"}
    page = console.page_url(nina)

    def send(**changes: str) -> None:
        addresses = console.inline("emailaddress_set", row | changes, known=1)
        assert operator.post(page, form_of(nina) | addresses).status_code == 302

    send()
    entry = AuditEntry.objects.get()
    assert entry.before == {"email": "nina@example.com"}
    assert entry.after == {"email": "evil@example.com"}
    send(verified="on")
    assert EmailAddress.objects.get().verified
    send(verified="on", DELETE="on")

    assert written() == [
        ("user:olga", "email.update", "email:evil@example.com"),
        ("user:olga", "email.update", "email:evil@example.com"),
        ("user:olga", "email.delete", "email:evil@example.com"),
    ]


def test_a_user_has_one_primary_address_and_each_address_once(operator: Client) -> None:
    nina = User.objects.create_user("nina", "nina@example.com")
    first = EmailAddress.objects.create(user=nina, email="nina@example.com", primary=True)
    known = {"id": first.pk, "email": first.email, "primary": "on"}
    second = {"email": "other@example.com", "primary": "on"}
    again = {"email": first.email}
    for rows, count in (([known, second], 1), ([second], 0), ([second, again], 0), ([again], 0)):
        form = form_of(nina) | console.inline("emailaddress_set", *rows, known=count)
        assert operator.post(console.page_url(nina), form).status_code == 200
    first.delete()
    rows = [second, {"email": "third@example.com", "primary": "on"}]
    form = form_of(nina) | console.inline("emailaddress_set", *rows)

    answer = operator.post(console.page_url(nina), form)

    assert "Only one address can be the primary one." in answer.content.decode()
    assert not EmailAddress.objects.exists()


def test_a_person_joins_a_team_once(operator: Client) -> None:
    team, nina = TeamFactory.create(), User.objects.create_user("nina")
    Membership.objects.create(team=team, user=nina, role="viewer")
    form = {"slug": team.slug, "name": team.name} | console.inline("invitations")
    members = console.inline("memberships", {"user": nina.pk, "role": "editor"})

    assert operator.post(console.page_url(team), form | members).status_code == 200

    assert Membership.objects.get().role == "viewer"


def test_a_removed_second_factor_is_audited(operator: Client) -> None:
    nina = User.objects.create_user("nina")
    factor = Authenticator.objects.create(user=nina, type="totp", data={"secret": "S3CR3T"})
    page = console.page_url(nina)
    assert "S3CR3T" not in console.look(operator, page)

    row = {"id": factor.pk, "type": "webauthn", "DELETE": "on"}
    form = form_of(nina) | console.inline("authenticator_set", row, known=1)
    assert operator.post(page, form).status_code == 302

    assert not Authenticator.objects.exists()
    assert written() == [("user:olga", "second_factor.delete", "second_factor:nina/totp")]
    before = AuditEntry.objects.get().before
    assert before is not None
    assert before["type"] == "totp"


def test_users_are_found_by_their_addresses(operator: Client) -> None:
    nina = User.objects.create_user("nina")
    EmailAddress.objects.create(user=nina, email="other@example.com")
    for query in ("?q=other@", "?emailaddress__verified__exact=0"):
        found = operator.get(console.list_url(User, query)).context["cl"]
        assert list(found.result_list) == [nina]
    client = console.staff("view_user")

    assert not client.get(console.list_url(User, "?q=other@")).context["cl"].result_list
    assert "other@example.com" not in console.look(client, console.page_url(nina))


def test_a_membership_does_not_move_to_another_team(operator: Client) -> None:
    here, there = TeamFactory.create(), TeamFactory.create()
    nina = User.objects.create_user("nina")
    row = Membership.objects.create(team=here, user=nina, role="viewer")
    other = User.objects.create_user("other")
    moved = {"id": row.pk, "user": other.pk, "role": "editor"}
    form = {"slug": here.slug, "name": here.name} | console.inline("invitations")
    for more, status in (({"team": there.pk}, 200), ({}, 302)):
        members = console.inline("memberships", moved | more, known=1)
        assert operator.post(console.page_url(here), form | members).status_code == status

    row.refresh_from_db()
    assert (row.team_id, row.user_id, row.role) == (here.id, nina.pk, "editor")
    entry = AuditEntry.objects.get()
    assert (entry.team_id, entry.after) == (here.id, {"role": "editor"})
