"""Restrict which rights people can grant: only their own. They cannot take over stronger accounts.

A password, an e-mail address or a second factor gives control over its account, so changing it
needs the same rights.
"""

from collections.abc import Collection
from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from channels_app.core import access
from channels_app.models import Membership

ROLE_NAMES = frozenset(role.name.casefold() for role in access.ROLES)
"""In lower case, since some databases ignore case when comparing names."""


def lacking(person: Any, needs: Collection[str]) -> list[str]:
    """The permissions among these that a person lacks."""
    return sorted(need for need in needs if not person.has_perm(need))


def scopes_lacking(person: Any, scopes: Collection[str]) -> list[str]:
    """The scopes among these that a person may not put into a key."""
    return [scope for scope in scopes if lacking(person, access.SCOPES[scope])]


def team_roles(person: Any) -> list[str]:
    """The roles in a team that a person may assign."""
    return [role for role, needs in access.TEAM_ROLES.items() if not lacking(person, needs)]


def permissions(person: Any) -> QuerySet[Permission]:
    """The permissions that a person has, and so may grant."""
    if person.is_superuser:
        return Permission.objects.all()
    return Permission.objects.filter(Q(user=person) | Q(group__user=person)).distinct()


def groups(person: Any) -> QuerySet[Group]:
    """The groups whose permissions a person has."""
    if person.is_superuser:
        return Group.objects.all()
    return Group.objects.exclude(permissions__in=_beyond(person))


def people(person: Any) -> QuerySet[User]:
    """The people whose accounts a person may change: those without more rights, active or not."""
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
    """Mixin for the page of users: read-only if they have more rights."""

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """False if that user has more rights."""
        return super().has_change_permission(request, obj) and self._may(request, obj)  # type: ignore[misc]  # a page's

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """False if that user has more rights."""
        return super().has_delete_permission(request, obj) and self._may(request, obj)  # type: ignore[misc]  # a page's

    def _may(self, request: HttpRequest, obj: Any) -> bool:
        if obj is None:
            return True
        return people(request.user).filter(pk=obj.pk).exists()


def _beyond(person: Any) -> QuerySet[Permission]:
    return Permission.objects.exclude(pk__in=permissions(person).values("pk"))
