"""Provide users of the portal, and its URLs."""

from collections.abc import Iterator
from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from channels_app.models import Membership, Team
from tests.support.routes import routes

CHANGING = ("post", "put", "patch", "delete")


def person(name: str, team: Team | None = None, role: str = "viewer") -> Client:
    """Return a client logged in as a person, optionally with a role in a team."""
    user = User.objects.create_user(name, email=f"{name}@example.com")
    if team is not None:
        Membership.objects.create(team=team, user=user, role=role)
    client = Client()
    client.force_login(user)
    return client


def portal_routes() -> Iterator[tuple[str, Any]]:
    """Yield path pattern and view class of every URL below /portal/."""
    for path, pattern in routes("/portal/"):
        view: Any = pattern.callback
        yield path, view.view_class


def team_routes() -> list[tuple[str, Any]]:
    """Return the URLs of a team."""
    return [(path, view) for path, view in portal_routes() if "<str:team>" in path]
