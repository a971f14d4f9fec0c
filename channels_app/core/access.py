"""Decide who may see and do what: team roles, the console's roles, grants, invitations.

Permissions are Django's, written ``app.action_model``.
"""

import hashlib
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from channels_app.core.errors import FieldError

BROKER = frozenset({"channels_app", "delivery"})
SENSITIVE = "channels_app.open_sensitive_message"
"""Permission to read the messages of sensitive channels."""
OWNERSHIP = frozenset({"apikey", "team", "membership", "invitation"})
"""Models that grant rights; operators may not change them."""
PEOPLE = frozenset({"auth.user", "auth.group", "account.emailaddress", "mfa.authenticator"})
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
_EDITOR = ("read", "register", "replay", "receive")
ROLE_SCOPES: Mapping[str, tuple[str, ...]] = {
    "viewer": ("read",),
    "editor": _EDITOR,
    "owner": (*_EDITOR, "sensitive"),
}
"""What a member may do with the objects of the team."""
_MANAGE = {"owner": {"channels_app.add_apikey", "channels_app.change_membership"}}
TEAM_ROLES: Mapping[str, frozenset[str]] = {
    role: frozenset(_MANAGE.get(role, ())).union(*(SCOPES[scope] for scope in scopes))
    for role, scopes in ROLE_SCOPES.items()
}
"""Permissions that a person needs to add members to a team: those that the role grants."""
TEAM_SCOPES = ("register", "receive", "read", "replay")
OPERATORS = frozenset({"sensitive", "admin"})
"""Scopes that no team may grant."""
PRODUCER_SCOPES = ("publish",)
"""Only producers publish, since every message needs an owner. They may do nothing else: a
producer's key may use internal channels, which teams must not read."""
TEAM_RANKS = ("viewer", "editor", "owner")
"""View; change what the team owns; manage its members."""
DAYS = (1, 7, 30)
"""Lifetimes of an invitation that can be chosen, in days."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


class Role(NamedTuple):
    """A group that every installation has."""

    name: str
    summary: str
    """For display."""
    may: Callable[[str, str, str], bool]
    """Whether the role has the permission of this app, action and model."""


def _views(app: str, action: str, model: str) -> bool:
    return action == "view" and app in BROKER | {"django_q"}


def _operates(app: str, action: str, model: str) -> bool:
    may_change = app in BROKER and model not in OWNERSHIP and action != "open"
    return _views(app, action, model) or may_change


def _administers(app: str, action: str, model: str) -> bool:
    return _operates(app, action, model) or app in BROKER or f"{app}.{model}" in PEOPLE


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


class KeyRights(NamedTuple):
    """The rights of a valid key of the same owner."""

    scopes: Collection[str]
    channels: Collection[str]
    """Empty: all channels for a producer's key, all external channels for a team's key."""
    expires_at: datetime | None = None


def excess(
    scopes: Collection[str],
    channels: Collection[str],
    *,
    of_producer: bool,
    held: Sequence[KeyRights],
) -> FieldError | None:
    """The first right of a requested key that a team may not grant; None if it may grant all.

    Each scope on each channel needs one key that has both. ``admin`` does not imply others here.
    """
    offered = PRODUCER_SCOPES if of_producer else TEAM_SCOPES
    if too_much := [scope for scope in scopes if scope not in offered]:
        owner = "of a producer" if of_producer else "of a team"
        return FieldError("scopes", f"A key {owner} cannot have the scope {too_much[0]} here.")
    for scope, channel, givers in _given(scopes, channels, of_producer=of_producer, held=held):
        if givers:
            continue
        if not channel:
            return FieldError("channels", "Name the channels that the key may use.")
        lacking = f"No working key of the same owner may {scope} on {channel}."
        return FieldError("channels", f"{lacking} Ask an operator for one.")
    return None


def end(
    scopes: Collection[str],
    channels: Collection[str],
    *,
    of_producer: bool,
    held: Sequence[KeyRights],
) -> datetime | None:
    """When the first of the granted rights expires; None if none does.

    A right lasts as long as the last key that has it. Access to external channels needs no key.
    """
    given = _given(scopes, channels, of_producer=of_producer, held=held)
    return min((last for *_, givers in given if (last := _last(givers))), default=None)


def every(scopes: Collection[str], *, of_producer: bool, held: Sequence[KeyRights]) -> list[str]:
    """Channels to list in a key for all that its owner may use; [] if the list may be empty."""
    if not of_producer or excess(scopes, (), of_producer=True, held=held) is None:
        return []
    named = [
        {channel for key in held if scope in key.scopes for channel in key.channels}
        for scope in scopes
    ]
    return sorted(set[str]().union(*named).intersection(*named))


def since(spans: Iterable[tuple[datetime, datetime | None]], now: datetime) -> datetime:
    """Since when a right has been held without interruption; ``now`` if it is not held.

    Each span is a time in which something, such as a key, gave the right. Its end is exclusive;
    None means that it is still open.
    """
    first, last = now, now
    for begin, end in sorted(spans, key=lambda span: span[0]):
        if begin >= now:
            break
        if first == now or begin > last:
            first, last = begin, begin
        last = max(last, min(end or now, now))
    return first if last >= now else now


def includes(role: str, wanted: str) -> bool:
    """Whether ``role`` includes the rights of ``wanted``."""
    return TEAM_RANKS.index(role) >= TEAM_RANKS.index(wanted)


def generate() -> str:
    """A new secret of 256 bits, in characters that are safe in a URL."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str | None:
    """The digest of a secret, which is stored; None for text that cannot be a secret."""
    if not _TOKEN.fullmatch(token):
        return None
    return hashlib.sha256(token.encode()).hexdigest()


def _given(
    scopes: Collection[str],
    channels: Collection[str],
    *,
    of_producer: bool,
    held: Sequence[KeyRights],
) -> Iterator[tuple[str, str, list[KeyRights]]]:
    """Each scope and channel with the keys that grant it; '' stands for all channels."""
    for scope in scopes:
        able = [key for key in held if scope in key.scopes]
        everywhere = [key for key in able if not key.channels] if of_producer else []
        if of_producer and not channels:
            yield scope, "", everywhere
        for channel in channels:
            yield scope, channel, everywhere + [key for key in able if channel in key.channels]


def _last(givers: Sequence[KeyRights]) -> datetime | None:
    ends = [key.expires_at for key in givers if key.expires_at]
    return max(ends) if ends and len(ends) == len(givers) else None
