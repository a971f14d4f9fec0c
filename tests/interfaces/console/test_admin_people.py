"""The audit log records the console's changes to users, but not their passwords."""

import pytest
from allauth.account.models import EmailAddress
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from channels_app.models import AuditEntry, Membership
from tests.support import console
from tests.support.factories import TeamFactory

pytestmark = pytest.mark.django_db

PASSWORD = "a rather long password 17"


@pytest.fixture
def operator() -> Client:
    return console.operator()


def test_a_user_is_created_without_showing_the_password(operator: Client) -> None:
    form = {"username": "nina", "password1": PASSWORD, "password2": PASSWORD}
    answer = operator.post(reverse("admin:auth_user_add"), form | {"usable_password": "true"})
    assert answer.status_code == 302, answer.context["adminform"].errors

    entry = AuditEntry.objects.get(action="user.create")
    assert (entry.actor, entry.target) == ("user:olga", "user:nina")
    assert entry.after is not None
    assert entry.after["username"] == "nina"
    assert PASSWORD not in str(entry.after)


def test_permission_changes_are_audited_with_old_and_new_values(operator: Client) -> None:
    nina = User.objects.create_user("nina")
    group = Group.objects.create(name="night shift")
    form = {
        "username": "nina",
        "is_active": "on",
        "is_staff": "on",
        "groups": [group.pk],
        "date_joined_0": f"{nina.date_joined:%Y-%m-%d}",
        "date_joined_1": f"{nina.date_joined:%H:%M:%S}",
    }
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
    row = EmailAddress.objects.create(user=nina, email="nina@example.com", primary=True)
    page = reverse("admin:account_emailaddress_change", args=[row.pk])
    answer = operator.post(page, {"user": nina.pk, "email": "evil@example.com", "primary": "on"})
    assert answer.status_code == 302, answer.context["adminform"].errors
    entry = AuditEntry.objects.get()
    assert entry.before == {"email": "nina@example.com"}
    assert entry.after == {"email": "evil@example.com"}
    chosen = {"action": "make_verified", "_selected_action": [row.pk]}
    operator.post(reverse("admin:account_emailaddress_changelist"), chosen)
    operator.post(reverse("admin:account_emailaddress_delete", args=[row.pk]), {"post": "yes"})

    assert written() == [
        ("user:olga", "email.update", "email:evil@example.com"),
        ("user:olga", "email.make_verified", "email:evil@example.com"),
        ("user:olga", "email.delete", "email:evil@example.com"),
    ]


def test_a_viewer_cannot_verify_mail_addresses() -> None:
    nina = User.objects.create_user("nina", "nina@example.com")
    row = EmailAddress.objects.create(user=nina, email="nina@example.com")
    otto = User.objects.create_user("otto", is_staff=True)
    otto.user_permissions.set(Permission.objects.filter(codename="view_emailaddress"))
    looker = Client()
    looker.force_login(otto)
    chosen = {"action": "make_verified", "_selected_action": [row.pk]}
    looker.post(reverse("admin:account_emailaddress_changelist"), chosen)

    row.refresh_from_db()
    assert not row.verified
    assert written() == []


def test_a_membership_does_not_move_to_another_team(operator: Client) -> None:
    here, there = TeamFactory.create(), TeamFactory.create()
    nina = User.objects.create_user("nina")
    row = Membership.objects.create(team=here, user=nina, role="viewer")
    page = reverse("admin:channels_app_membership_change", args=[row.pk])
    answer = operator.post(page, {"user": nina.pk, "team": there.pk, "role": "editor"})
    assert answer.status_code == 302, answer.context["adminform"].errors

    row.refresh_from_db()
    assert (row.team_id, row.role) == (here.id, "editor")
    entry = AuditEntry.objects.get()
    assert (entry.team_id, entry.after) == (here.id, {"role": "editor"})
