"""Create the console's roles: groups with the permissions that `access.ROLES` names."""

from typing import Any

from django.contrib.auth.models import Group, Permission

from channels_app.core import access


def ensure(**_: Any) -> None:
    """Reset the groups; called after each ``migrate``, when all permissions exist."""
    every = list(Permission.objects.select_related("content_type"))
    for role in access.ROLES:
        group, _made = Group.objects.get_or_create(name=role.name)
        wanted = {row.pk for row in every if role.may(*_parts(row))}
        if set(group.permissions.values_list("pk", flat=True)) != wanted:
            group.permissions.set(wanted)


def _parts(permission: Permission) -> tuple[str, str, str]:
    """App, action and model, from a code name in Django's format."""
    kind = permission.content_type
    return kind.app_label, permission.codename.partition("_")[0], kind.model
