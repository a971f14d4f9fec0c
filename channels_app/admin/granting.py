"""Granting: people give only what they have, and take over nobody who has more.

A password, an e-mail address and a second factor are as good as the account that they open, so they
are out of reach with it.
"""

from collections.abc import Collection
from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from channels_app.models import Membership
from channels_app.rules import access

ROLE_NAMES = frozenset(role.name.casefold() for role in access.ROLES)
"""Some databases compare names without their case."""


def lacking(person: Any, needs: Collection[str]) -> list[str]:
    """Which of these permissions somebody does not have."""
    return sorted(need for need in needs if not person.has_perm(need))


def scopes_lacking(person: Any, scopes: Collection[str]) -> list[str]:
    """Which of these scopes somebody may not put into a key."""
    return [scope for scope in scopes if lacking(person, access.SCOPES[scope])]


def team_roles(person: Any) -> list[str]:
    """The roles in a team that somebody may give."""
    return [role for role, needs in access.TEAM_ROLES.items() if not lacking(person, needs)]


def permissions(person: Any) -> QuerySet[Permission]:
    """The permissions that somebody has, and so may give."""
    if person.is_superuser:
        return Permission.objects.all()
    return Permission.objects.filter(Q(user=person) | Q(group__user=person)).distinct()


def groups(person: Any) -> QuerySet[Group]:
    """The groups whose permissions somebody has."""
    if person.is_superuser:
        return Group.objects.all()
    return Group.objects.exclude(permissions__in=_beyond(person))


def people(person: Any) -> QuerySet[User]:
    """Whose accounts somebody may change: who has no more than they have, active or not."""
    if person.is_superuser:
        return User.objects.all()
    beyond = _beyond(person)
    stronger = Membership.objects.exclude(role__in=team_roles(person))
    return (
        User.objects.exclude(is_superuser=True)
        .exclude(user_permissions__in=beyond)
        .exclude(groups__permissions__in=beyond)
        .exclude(pk__in=stronger.values("user_id"))
    )


class GrantsPermissions:
    """Mixin of pages whose rows belong to people: those of the stronger are looked at only."""

    def owner_of(self, obj: Any) -> User:
        """Whose the row is."""
        owner: User = obj.user
        return owner

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Not of who has more."""
        return super().has_change_permission(request, obj) and self._may(request, obj)  # type: ignore[misc]  # a page's

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Not of who has more."""
        return super().has_delete_permission(request, obj) and self._may(request, obj)  # type: ignore[misc]  # a page's

    def _may(self, request: HttpRequest, obj: Any) -> bool:
        if obj is None:
            return True
        return people(request.user).filter(pk=self.owner_of(obj).pk).exists()


def _beyond(person: Any) -> QuerySet[Permission]:
    return Permission.objects.exclude(pk__in=permissions(person).values("pk"))
