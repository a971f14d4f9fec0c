"""Roles in a team, each including what the ones before it may do."""

ROLES = ("viewer", "editor", "owner")
"""See; change what the team owns; decide who belongs to it."""


def includes(role: str, wanted: str) -> bool:
    """Whether somebody with ``role`` may do what ``wanted`` may."""
    return ROLES.index(role) >= ROLES.index(wanted)
