"""Define the console's three standard roles, and what a person needs to grant them to others.

Permissions are Django's, written ``app.action_model``.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

BROKER = frozenset({"channels_app", "delivery"})
SENSITIVE = "channels_app.open_sensitive_message"
"""Permission to read the messages of sensitive channels."""
OWNERSHIP = frozenset({"apikey", "team", "membership", "invitation"})
"""Models that grant rights; operators may not change them."""
PEOPLE = frozenset({"auth.user", "auth.group", "account.emailaddress", "mfa.authenticator"})


def _views(app: str, action: str, model: str) -> bool:
    return action == "view" and app in BROKER | {"django_q"}


def _operates(app: str, action: str, model: str) -> bool:
    may_change = app in BROKER and model not in OWNERSHIP and action != "open"
    return _views(app, action, model) or may_change


def _administers(app: str, action: str, model: str) -> bool:
    return _operates(app, action, model) or app in BROKER or f"{app}.{model}" in PEOPLE


class Role(NamedTuple):
    """A group that every installation has."""

    name: str
    summary: str
    """For display."""
    may: Callable[[str, str, str], bool]
    """Whether the role has the permission of this app, action and model."""


ROLES = (
    Role(
        "Viewer",
        "Sees everything, including bodies of channels that are not sensitive. Changes nothing.",
        _views,
    ),
    Role(
        "Operator",
        "A viewer who also configures channels and consumers, pauses, replays, cancels and moves.",
        _operates,
    ),
    Role(
        "Administrator",
        "An operator who also looks after people, teams and keys, and opens sensitive messages.",
        _administers,
    ),
)

_READ = frozenset({"channels_app.view_message", "delivery.view_delivery"})
_SCOPES: dict[str, frozenset[str]] = {
    "publish": frozenset({"channels_app.add_message"}),
    "register": frozenset({"channels_app.add_consumer", "channels_app.change_consumer"}),
    "receive": _READ | {"delivery.change_delivery"},
    "read": _READ,
    "replay": frozenset({"delivery.add_replay"}),
    "sensitive": _READ | {SENSITIVE},
}
SCOPES: Mapping[str, frozenset[str]] = _SCOPES | {
    "admin": frozenset().union(
        *_SCOPES.values(),
        (
            f"channels_app.{action}_{model}"
            for action in ("add", "change")
            for model in ("channel", "producer", "apikey")
        ),
    )
}
"""Permissions that a person needs to create a key with a scope: those that the key grants."""
_EDITOR = SCOPES["read"] | SCOPES["register"] | SCOPES["replay"] | SCOPES["receive"]
TEAM_ROLES: Mapping[str, frozenset[str]] = {
    "viewer": SCOPES["read"],
    "editor": _EDITOR,
    "owner": _EDITOR | {SENSITIVE, "channels_app.add_apikey", "channels_app.change_membership"},
}
"""Permissions that a person needs to add members to a team: those that the role grants."""
