"""Order the roles in a team; each one includes the rights of the ones before it."""

ROLES = ("viewer", "editor", "owner")
"""View; change what the team owns; manage its members."""


def includes(role: str, wanted: str) -> bool:
    """Whether ``role`` includes the rights of ``wanted``."""
    return ROLES.index(role) >= ROLES.index(wanted)
