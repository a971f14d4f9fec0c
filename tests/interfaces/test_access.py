"""Access of every kind of user to every page, action and operation: tests/golden/access.txt.

Each request is made on real objects and rolled back. The statuses mean: 200 a page, 302 a redirect
(to sign in, or after success), 400 and 422 allowed but the empty form was refused, 403 not allowed,
404 not found for this user.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.template import Template
from django.template.response import SimpleTemplateResponse
from django.test import Client, RequestFactory
from rest_framework.views import APIView

from channels_app.api.base import ApiView
from channels_app.core import access, keys
from channels_app.core.access import TEAM_RANKS
from channels_app.models import ApiKey, Consumer, Invitation, Membership, Team
from channels_app.registry import roles
from tests.interfaces.conftest import Same
from tests.support import console, world
from tests.support.factories import ApiKeyFactory, TeamFactory, bearer
from tests.support.routes import routes

pytestmark = [pytest.mark.django_db, pytest.mark.slow("asks every address as everybody")]

METHODS = ("get", "post", "put", "patch", "delete")
PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>|\(\?P<(\w+)>[^)]*\)")
Callers = dict[str, Callable[..., Any]]


@pytest.fixture(autouse=True)
def _unwritten(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Skip what does not decide about access: rendering, and reading sessions and users again."""
    monkeypatch.setattr(SimpleTemplateResponse, "rendered_content", "")
    monkeypatch.setattr(Template, "render", lambda *_: "")
    monkeypatch.setattr(admin.site, "each_context", lambda _: {})
    known = cache(lambda pk: User.objects.get(pk=pk))
    monkeypatch.setattr(ModelBackend, "get_user", lambda _, pk: known(pk))
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"


def asked(call: Callable[..., Any], method: str, path: str) -> int:
    """Return the status of one request, whose effects are rolled back."""
    with transaction.atomic():
        status: int = call(method.upper(), path)
        transaction.set_rollback(True)
    return status


def table(title: str, callers: Callers, addresses: Iterator[tuple[str, str, str]]) -> list[str]:
    """Yield a line for each method of each address, with the status of every user."""
    found = [f"{title}: {' '.join(callers)}"]
    for shown, method, path in addresses:
        statuses = " ".join(str(asked(call, method, path)) for call in callers.values())
        found.append(f"{statuses}  {method.upper()} {shown}")
    return found


def filled(path: str, values: dict[str, str]) -> str | None:
    """Return an address with real names; None if one is unknown."""
    names = [first or second for first, second in PARAMETER.findall(path)]
    if not set(names) <= values.keys():
        return None
    return PARAMETER.sub(lambda found: values[found[1] or found[2]], path)


# -- Console ---------------------------------------------------------------------------------------


def staff() -> dict[str, User]:
    """Return users of each kind, with and without access to the console."""
    roles.ensure()
    people = {"nobody": User.objects.create_user("nobody", is_staff=True)}
    for role in access.ROLES:
        people[role.name.lower()] = User.objects.create_user(role.name.lower(), is_staff=True)
        people[role.name.lower()].groups.add(Group.objects.get(name=role.name))
    return people | {"superuser": User.objects.create_superuser("superuser")}


def browser(user: User | None) -> Callable[..., int]:
    client = Client(raise_request_exception=False)
    if user is not None:
        client.force_login(user)
    return lambda method, path: int(client.generic(method, path, "").status_code)


def console_addresses() -> Iterator[tuple[str, str, str]]:
    for path, _ in routes("/admin/"):
        found = re.match(r"/admin/(\w+)/(\w+)/", path)
        values = {}
        if found and found[1] in apps.app_configs:
            model = apps.get_model(found[1], found[2])
            row = model._default_manager.order_by("pk").first()
            values = {name: str(row.pk) for name in ("object_id", "id") if row is not None}
            values["job"] = "archive"
        address = filled(path, values)
        if address is None or "^" in path or "(" in path or "logout" in path:
            continue
        if path.endswith("<path:object_id>/"):
            continue  # Django redirects everybody to the page of the change
        for method in ("get",) if path.endswith("/history/") else ("get", "post"):
            yield path, method, address


def actions(people: dict[str, User]) -> Iterator[str]:
    """Yield the users who are offered each action on selected rows."""
    for model, page in sorted(admin.site._registry.items(), key=lambda item: item[0]._meta.label):
        offered = {}
        for name, user in people.items():
            request = RequestFactory().get("/")
            request.user = user
            offered[name] = set(page.get_actions(request))
        for action in sorted(set().union(*offered.values())):
            who = " ".join("yes" if action in offered[name] else "no" for name in people)
            yield f"{who}  {model._meta.label}: {action}"


# -- API and portal --------------------------------------------------------------------------------


def key_holders(team: Team) -> Callers:
    """Return a key of each scope without an owner, a team's key with all its rights, and no key."""
    holders: dict[str, ApiKey | None] = {"none": None}
    for scope in keys.SCOPES:
        holders[scope] = ApiKeyFactory.create(producer=None, scopes=[scope])
    holders["team"] = ApiKeyFactory.create(
        team=team, scopes=["register", "receive", "read", "replay"]
    )
    return {name: program(key) for name, key in holders.items()}


def program(key: ApiKey | None) -> Callable[..., int]:
    client = Client(raise_request_exception=False)
    headers = {"Authorization": bearer(key)} if key else {}

    def call(method: str, path: str) -> int:
        answer = client.generic(method, path, "{}", "application/json", headers=headers)
        return int(answer.status_code)

    return call


def api_addresses(values: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    seen = set()
    for path, pattern in routes("/api/v1/"):
        view: Any = getattr(pattern.callback, "view_class", None)
        address = filled(path, values)
        if view is None or not issubclass(view, APIView) or address is None:
            continue
        for method in METHODS:
            if (path, method) not in seen and issubclass(view, ApiView) and hasattr(view, method):
                seen.add((path, method))
                yield path, method, address


def members(team: Team) -> Callers:
    """Return a member of each role, the owner of another team, a visitor, and an operator."""
    made: Callers = {"stranger": browser(None)}
    other = User.objects.create_user("other")
    Membership.objects.create(team=TeamFactory.create(), user=other, role="owner")
    made["other"] = browser(other)
    for role in TEAM_RANKS:
        person = User.objects.create_user(f"team-{role}")
        Membership.objects.create(team=team, user=person, role=role)
        made[role] = browser(person)
    return made | {"operator": browser(User.objects.create_superuser("operator without a team"))}


def portal_addresses(values: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for path, _ in routes("/portal/"):
        address = filled(path, values)
        if address is not None:
            for method in ("get", "post"):
                yield path, method, address


# -- The table -------------------------------------------------------------------------------------


@pytest.mark.trap("privilege escalation")
@pytest.mark.trap("missing authentication and readable secrets")
def test_access_matrix_matches_the_golden_file(same: Same) -> None:
    people = staff()
    console.fill()
    visitors: Callers = {"stranger": browser(None)}
    visitors |= {name: browser(user) for name, user in people.items()}
    found = table("CONSOLE", visitors, console_addresses())
    found += ["", f"ACTIONS ON ROWS: {' '.join(people)}", *actions(people)]

    team = TeamFactory.create()
    made = world.make(team)
    of_api = table("API", key_holders(team), api_addresses(made.parameters))
    found += ["", *of_api]

    consumer = Consumer.objects.get(pk=made.consumer.pk)
    team_key = ApiKeyFactory.create(team=team, scopes=["read"])
    callers = members(team)
    invitation = Invitation.objects.create(
        team=team,
        role="viewer",
        email="nora@example.com",
        invited_by="owner",
        digest="x" * 64,
        created_at="2026-01-01 00:00:00+00:00",
        expires_at="2100-01-01 00:00:00+00:00",
    )
    values = made.parameters | {
        "team": team.slug,
        "client_id": consumer.client_id,
        "delivery": made.parameters["delivery_id"],
        "member": str(Membership.objects.get(team=team, role="viewer").pk),
        "invitation": str(invitation.pk),
        "key_id": team_key.key_id,
    }
    of_portal = table("PORTAL", callers, portal_addresses(values))
    found += ["", *of_portal]

    same("access.txt", "".join(f"{line}\n" for line in found))
    console_part = found[1 : found.index("")]
    for line in console_part:
        stranger, nobody, viewer, *_ = line.split()
        assert stranger in ("302", "301", "404", "405") or "/login/" in line, line
        assert nobody in ("302", "301", "403", "404", "405") or not _guarded(line), line
        if re.search(r" POST /admin/.*/(add|change|delete)/$", line) and _guarded(line):
            assert viewer == "403", line
    assert [line for line in of_api[1:] if not line.startswith("401 ")] == []
    for line in of_portal[1:]:
        stranger, another, viewer, *_ = line.split()
        assert stranger == "302", line
        if "<str:team>" in line:
            assert another == "404", line
            assert "POST" not in line or viewer == "403" or line.endswith("/members/leave/"), line


def _guarded(line: str) -> bool:
    """Return whether the page needs a permission of its own."""
    found = re.search(r"/admin/(\w+)/(\w+)/", line)
    return found is not None and found[1] in apps.app_configs
