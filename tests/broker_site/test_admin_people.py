"""What the console does to people stands in the audit log, but for their passwords."""

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from channels_app.models import AuditEntry
from tests import console

pytestmark = pytest.mark.django_db

PASSWORD = "a rather long password 17"


@pytest.fixture
def operator() -> Client:
    return console.operator()


def test_a_person_is_made_and_the_password_is_nobodys_business(operator: Client) -> None:
    form = {"username": "nina", "password1": PASSWORD, "password2": PASSWORD}
    answer = operator.post(reverse("admin:auth_user_add"), form | {"usable_password": "true"})
    assert answer.status_code == 302, answer.context["adminform"].errors

    entry = AuditEntry.objects.get(action="user.create")
    assert (entry.actor, entry.target) == ("user:olga", "user:nina")
    assert entry.after is not None
    assert entry.after["username"] == "nina"
    assert PASSWORD not in str(entry.after)


def test_what_a_person_may_do_is_written_down_before_and_after(operator: Client) -> None:
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


def test_a_new_password_and_an_end_are_written_down(operator: Client) -> None:
    nina = User.objects.create_user("nina")
    form = {"password1": PASSWORD, "password2": PASSWORD, "usable_password": "true"}
    operator.post(reverse("admin:auth_user_password_change", args=[nina.pk]), form)
    operator.post(reverse("admin:auth_user_delete", args=[nina.pk]), {"post": "yes"})

    actions = AuditEntry.objects.order_by("id").values_list("action", "target")
    assert list(actions) == [("user.set_password", "user:nina"), ("user.delete", "user:nina")]
    assert not User.objects.filter(username="nina").exists()
