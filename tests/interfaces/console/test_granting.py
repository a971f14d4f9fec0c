"""Users cannot grant rights that they lack, nor take over users with more rights."""

from typing import Any

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from channels_app.core import access, keys
from channels_app.models import ApiKey, Membership, Team
from channels_app.registry import roles
from tests.support import console
from tests.support.factories import ApiKeyFactory, ProducerFactory, TeamFactory

pytestmark = pytest.mark.django_db

PASSWORD = "a rather long password 17"


def person(name: str, *permissions: str, groups: tuple[str, ...] = (), **values: Any) -> User:
    """Create a staff user with these permissions and groups."""
    made = User.objects.create_user(name, f"{name}@example.com", is_staff=True, **values)
    codes = [permission.partition(".")[2] for permission in permissions]
    made.user_permissions.set(Permission.objects.filter(codename__in=codes))
    made.groups.set(Group.objects.filter(name__in=groups))
    return made


def client_of(user: User) -> Client:
    made = Client()
    made.force_login(user)
    return made


@pytest.fixture(autouse=True)
def _roles() -> None:
    roles.ensure()


def fields_of(user: User, **changes: Any) -> dict[str, Any]:
    """Return a user's form as the page sends it."""
    joined = user.date_joined
    return {
        "username": user.username,
        "email": user.email,
        "is_active": "on",
        "is_staff": "on",
        "groups": list(user.groups.values_list("pk", flat=True)),
        "user_permissions": list(user.user_permissions.values_list("pk", flat=True)),
        "date_joined_0": f"{joined:%Y-%m-%d}",
        "date_joined_1": f"{joined:%H:%M:%S}",
        **console.inline("memberships"),
        **console.inline("emailaddress_set"),
        **console.inline("authenticator_set"),
        **changes,
    }


# -- Roles -----------------------------------------------------------------------------------------


def test_migrating_restores_the_three_groups() -> None:
    Group.objects.filter(name="Viewer").delete()
    Group.objects.get(name="Operator").permissions.clear()
    call_command("migrate", verbosity=0)

    assert {role.name for role in access.ROLES} <= set(Group.objects.values_list("name", flat=True))
    sizes = [Group.objects.get(name=role.name).permissions.count() for role in access.ROLES]
    assert 0 < sizes[0] < sizes[1] < sizes[2]


def test_each_group_includes_the_weaker_one() -> None:
    before: set[str] = set()
    for role in access.ROLES:
        mine = person(role.name.lower(), groups=(role.name,)).get_all_permissions()
        assert before < mine
        before = mine


def test_groups_lack_forbidden_permissions() -> None:
    viewer = person("vera", groups=("Viewer",))
    operator = person("otto", groups=("Operator",))
    assert {name.partition(".")[2].partition("_")[0] for name in viewer.get_all_permissions()} == {
        "view"
    }
    for name in ("auth.view_user", "mfa.view_authenticator", "account.view_emailaddress"):
        assert not viewer.has_perm(name)
        assert not operator.has_perm(name)
    for name in ("channels_app.add_apikey", "channels_app.add_membership", "auth.change_user"):
        assert not operator.has_perm(name)
    administrator = person("anna", groups=("Administrator",))
    assert not administrator.has_perm("django_q.add_schedule")
    assert not [scope for scope in keys.SCOPES if not _has(administrator, access.SCOPES[scope])]


def _has(user: User, needs: Any) -> bool:
    return all(user.has_perm(need) for need in needs)


def test_every_required_permission_exists() -> None:
    rows = Permission.objects.select_related("content_type")
    known = {f"{row.content_type.app_label}.{row.codename}" for row in rows}
    for needs in (*access.SCOPES.values(), *access.TEAM_ROLES.values()):
        assert needs <= known
    assert set(access.SCOPES) == set(keys.SCOPES)


@pytest.mark.parametrize("page", ["user", "group"])
def test_the_user_pages_explain_the_groups(page: str) -> None:
    shown = console.look(console.operator(), reverse(f"admin:auth_{page}_changelist"))
    for role in access.ROLES:
        assert role.summary in shown


# -- Keys ------------------------------------------------------------------------------------------


def key_form(*scopes: str) -> dict[str, Any]:
    return {"label": "mine", "scopes": list(scopes), "channels": "", "all_channels": "on"}


@pytest.mark.trap("privilege escalation")
def test_permission_add_apikey_alone_creates_no_key() -> None:
    weak = client_of(person("wim", "channels_app.add_apikey", "channels_app.view_apikey"))
    for scope in keys.SCOPES:
        answer = weak.post(reverse("admin:channels_app_apikey_add"), key_form(scope))
        assert f"You may not grant {scope}" in answer.content.decode()
    assert not ApiKey.objects.exists()


def test_a_key_cannot_exceed_its_creators_permissions() -> None:
    maker = client_of(person("mia", "channels_app.add_apikey", *access.SCOPES["read"]))
    page = reverse("admin:channels_app_apikey_add")
    assert "hsk_" in maker.post(page, key_form("read")).content.decode()
    assert "You may not grant admin" in maker.post(page, key_form("read", "admin")).content.decode()
    assert [key.scopes for key in ApiKey.objects.all()] == [["read"]]


@pytest.mark.trap("a key for all channels by omission")
def test_the_console_requires_an_explicit_choice_of_all_channels() -> None:
    page, form = reverse("admin:channels_app_apikey_add"), key_form("publish")
    del form["all_channels"]
    operator = console.operator()
    refused = operator.post(page, form)
    assert "Name the channels, or set all_channels" in refused.content.decode()
    assert not ApiKey.objects.exists()

    assert "hsk_" in operator.post(page, key_form("publish")).content.decode()
    key = ApiKey.objects.get()
    shown = reverse("admin:channels_app_apikey_change", args=[key.pk])
    assert "all, including future ones" in console.look(operator, shown)


def test_rotating_a_stronger_key_is_refused() -> None:
    key = ApiKeyFactory.create(admin=True)
    weak = client_of(person("wim", "channels_app.change_apikey", "channels_app.view_apikey"))
    page = reverse("admin:channels_app_apikey_rotate", args=[key.pk])
    assert weak.post(page, {"overlap_s": "0", "reason": ""}).status_code in (302, 403)
    assert ApiKey.objects.count() == 1


# -- People ----------------------------------------------------------------------------------------


@pytest.fixture
def manager() -> Client:
    """A user who may change users and nothing else."""
    people = ("auth.view_user", "auth.add_user", "auth.change_user", "auth.delete_user")
    more = ("account.change_emailaddress", "account.add_emailaddress", "account.view_emailaddress")
    factors = ("mfa.view_authenticator", "mfa.delete_authenticator")
    return client_of(person("max", *people, *more, *factors))


@pytest.mark.trap("privilege escalation")
def test_permission_change_user_alone_makes_no_superuser(manager: Client) -> None:
    for name in ("max", "nina"):
        user = User.objects.filter(username=name).first() or person(name)
        page = reverse("admin:auth_user_change", args=[user.pk])
        manager.post(page, fields_of(user, is_superuser="on"))
        user.refresh_from_db()
        assert not user.is_superuser


def test_permission_change_user_alone_grants_nothing(manager: Client) -> None:
    nina = person("nina")
    page = reverse("admin:auth_user_change", args=[nina.pk])
    strong = Permission.objects.get(codename="add_apikey")
    answer = manager.post(page, fields_of(nina, user_permissions=[strong.pk]))
    assert "is not one of the available choices" in answer.content.decode()
    role = Group.objects.get(name="Viewer")
    answer = manager.post(page, fields_of(nina, groups=[role.pk]))
    assert "is not one of the available choices" in answer.content.decode()
    assert nina.get_all_permissions() == set()
    own = Permission.objects.get(codename="view_user")
    assert manager.post(page, fields_of(nina, user_permissions=[own.pk])).status_code == 302
    assert User.objects.get(pk=nina.pk).get_all_permissions() == {"auth.view_user"}


STRONGER: dict[str, dict[str, Any]] = {
    "superuser": {"is_superuser": True},
    "in a role": {"groups": ("Viewer",)},
    "away": {"groups": ("Viewer",), "is_active": False},
}


@pytest.mark.trap("privilege escalation")
@pytest.mark.parametrize("kind", [*STRONGER, "owner of a team"])
def test_accounts_with_more_permissions_cannot_be_changed(manager: Client, kind: str) -> None:
    strong = person("stella", **STRONGER.get(kind, {}))
    if kind == "owner of a team":
        Membership.objects.create(team=TeamFactory.create(), user=strong, role="owner")
    strong.set_password("the old one 17")
    strong.save()
    address = EmailAddress.objects.create(user=strong, email=strong.email, primary=True)
    factor = Authenticator.objects.create(user=strong, type="totp", data={})
    form = {"password1": PASSWORD, "password2": PASSWORD, "usable_password": "true"}
    place = "admin:auth_user"
    moved = {"email": "evil@example.com", "primary": "on", "verified": "on"}
    inlines = [
        console.inline("emailaddress_set", {"id": address.pk, **moved}, known=1),
        console.inline("emailaddress_set", moved),
        console.inline("authenticator_set", {"id": factor.pk, "DELETE": "on"}, known=1),
    ]
    requests: list[tuple[str, dict[str, Any]]] = [
        (reverse(f"{place}_password_change", args=[strong.pk]), form),
        (reverse(f"{place}_change", args=[strong.pk]), fields_of(strong, email="evil@example.com")),
        (reverse(f"{place}_delete", args=[strong.pk]), {"post": "yes"}),
        (
            reverse(f"{place}_changelist"),
            {"action": "delete_selected", "_selected_action": [strong.pk], "post": "yes"},
        ),
        *((reverse(f"{place}_change", args=[strong.pk]), fields_of(strong, **i)) for i in inlines),
    ]
    for page, values in requests:
        manager.post(page, values)
    found = User.objects.get(pk=strong.pk)
    assert found.check_password("the old one 17")
    assert found.email == strong.email
    (left,) = EmailAddress.objects.all()
    assert (left.email, left.verified) == (strong.email, False)
    assert Authenticator.objects.filter(pk=factor.pk).exists()


def test_an_administrator_manages_all_users_except_superusers() -> None:
    anna = client_of(person("anna", groups=("Administrator",)))
    nina = person("nina", groups=("Operator",))
    role = Group.objects.get(name="Administrator")
    page = reverse("admin:auth_user_change", args=[nina.pk])
    assert anna.post(page, fields_of(nina, groups=[role.pk])).status_code == 302
    assert nina.groups.get() == role
    root = person("root", is_superuser=True)
    page = reverse("admin:auth_user_change", args=[root.pk])
    assert anna.post(page, fields_of(root, is_active="")).status_code == 403


# -- Groups and teams ------------------------------------------------------------------------------


def test_a_group_cannot_exceed_its_editors_permissions() -> None:
    gina = client_of(person("gina", "auth.add_group", "auth.change_group", "auth.view_group"))
    own, other = (Permission.objects.get(codename=code) for code in ("add_group", "add_user"))
    page = reverse("admin:auth_group_add")
    answer = gina.post(page, {"name": "night shift", "permissions": [own.pk, other.pk]})
    assert "is not one of the available choices" in answer.content.decode()
    assert gina.post(page, {"name": "night shift", "permissions": [own.pk]}).status_code == 302
    for name in ("Viewer", "Administrator"):
        role = Group.objects.get(name=name)
        page = reverse("admin:auth_group_change", args=[role.pk])
        assert gina.post(page, {"name": "mine", "permissions": [own.pk]}).status_code == 403


TEAM = (
    *("channels_app.change_team", "channels_app.delete_team", "channels_app.add_membership"),
    *("channels_app.change_membership", "channels_app.delete_membership"),
)


def team_form(team: Team, *rows: dict[str, Any], known: int = 0) -> dict[str, Any]:
    """Return a team's form as the page sends it."""
    members = console.inline("memberships", *rows, known=known)
    return {"slug": team.slug, "name": team.name, **members, **console.inline("invitations")}


@pytest.mark.trap("privilege escalation")
def test_a_stronger_team_owner_cannot_be_changed_or_removed() -> None:
    """Without the role the account would be in reach of those who may change weaker users."""
    weak = client_of(person("wim", *TEAM, "auth.change_user", *access.SCOPES["read"]))
    team = TeamFactory.create()
    owner = Membership.objects.create(team=team, user=person("stella"), role="owner")
    viewer = Membership.objects.create(team=team, user=person("vera"), role="viewer")
    page, place = console.page_url(team), "admin:channels_app_team"
    rows = [
        {"id": owner.pk, "user": owner.user_id, "role": "viewer", "DELETE": "on"},
        {"id": viewer.pk, "user": viewer.user_id, "role": "viewer", "DELETE": "on"},
    ]

    assert weak.post(page, team_form(team, *rows, known=2)).status_code == 302
    weak.post(reverse(f"{place}_delete", args=[team.pk]), {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": [team.pk], "post": "yes"}
    weak.post(reverse(f"{place}_changelist"), chosen)

    (left,) = Membership.objects.all()
    assert (left.pk, left.role) == (owner.pk, "owner")


def test_deleting_a_team_or_a_user_needs_permission_for_what_goes_along() -> None:
    codes = ("channels_app.delete_team", "auth.delete_user", "auth.change_user")
    weak = client_of(person("wim", *codes, *access.SCOPES["read"]))
    team, nina = TeamFactory.create(), person("nina")
    row = Membership.objects.create(team=team, user=nina, role="viewer")
    places = [("channels_app_team", team), ("auth_user", nina)]

    for place, gone in places:
        weak.post(reverse(f"admin:{place}_delete", args=[gone.pk]), {"post": "yes"})
    assert Membership.objects.get() == row
    row.delete()
    for place, gone in places:
        weak.post(reverse(f"admin:{place}_delete", args=[gone.pk]), {"post": "yes"})
    assert not Team.objects.exists()
    assert not User.objects.filter(username="nina").exists()


def test_an_operator_cannot_give_a_team_a_producer() -> None:
    """A team creates keys for its producers, and sees them."""
    otto = person("otto", groups=("Operator",))
    team = TeamFactory.create()
    Membership.objects.create(team=team, user=otto, role="owner")
    producer = ProducerFactory.create(team=None)
    page = reverse("admin:channels_app_producer_change", args=[producer.pk])
    form = {
        "slug": producer.slug,
        "description": "mine",
        "default_priority": 4,
        "max_priority": 9,
        "rate_burst": 1,
    }
    answer = client_of(otto).post(page, form | {"team": team.pk, "seen": producer.version})
    producer.refresh_from_db()
    assert answer.status_code == 302, answer.context["adminform"].errors
    assert (producer.description, producer.team_id) == ("mine", None)


def test_permission_add_membership_alone_adds_no_member() -> None:
    weak = person("wim", *TEAM)
    team = TeamFactory.create()
    page = console.page_url(team)
    for role in access.TEAM_ROLES:
        client_of(weak).post(page, team_form(team, {"user": weak.pk, "role": role}))
    assert not Membership.objects.exists()
    able = person("mia", *TEAM, *access.SCOPES["read"])
    for role in ("owner", "viewer"):
        answer = client_of(able).post(page, team_form(team, {"user": able.pk, "role": role}))
    assert answer.status_code == 302
    assert Membership.objects.get().role == "viewer"
