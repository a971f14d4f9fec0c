"""Principals of tests."""

from channels_app.access.principal import Principal


def acting(actor: str, reason: str = "") -> Principal:
    """An operator, who sees the objects of all teams."""
    return Principal(actor, reason, is_operator=True)
