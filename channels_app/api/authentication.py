"""Who calls: API keys, what they may do, and which channels they were granted."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import Error as DatabaseFailure
from django.db.models import Q
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from channels_app import clock
from channels_app.config_cache import KeyConfig, config_cache
from channels_app.errors import NotFound
from channels_app.models import ApiKey, Producer
from channels_app.rules import keys
from channels_app.rules.tenants import Tenant

USE_NOTE_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of the key that a request came with."""

    key: KeyConfig
    is_authenticated: bool = True

    @property
    def actor(self) -> str:
        """As the audit trail names it."""
        return f"key:{self.key.key_id}"

    @property
    def producer(self) -> Producer | None:
        """Whose messages it publishes; None for a key of a team or of the installation."""
        return self.key.producer

    @property
    def tenant(self) -> Tenant:
        """Whose objects exist for it."""
        return Tenant(self.key.team_id, everything="admin" in self.key.scopes)

    @property
    def owner(self) -> tuple[str, int]:
        """Who alone is hurt by what it does too much of: its team, its producer, or itself."""
        if self.key.team_id is not None:
            return "team", self.key.team_id
        if self.key.producer is not None:
            return "producer", self.key.producer.id
        return "key", self.key.id

    def may(self, *scopes: str) -> bool:
        """Whether it has one of these scopes."""
        return any(keys.allows(self.key.scopes, scope) for scope in scopes)

    def may_use(self, channel: str) -> bool:
        """Whether it was granted this channel. No grants at all mean all channels."""
        granted = self.key.channels
        return not granted or channel in granted or "admin" in self.key.scopes

    def may_publish(self, channel: str) -> bool:
        """Whether it may publish on the channel of that name, and that exists for it."""
        view = config_cache.channel(channel)
        return self.may("publish") and view is not None and self.sees(channel, view.exposure)

    def sees(self, channel: str, exposure: str) -> bool:
        """Whether the channel exists for it: teams are granted internal ones by name (S1-21)."""
        if not self.may_use(channel):
            return False
        of_a_team = self.key.producer is None and self.key.team_id is not None
        named = channel in self.key.channels or "admin" in self.key.scopes
        return exposure == "external" or named or not of_a_team


class KeyAuthentication(BaseAuthentication):
    """``Authorization: Bearer hsk_...``; anything else that is sent there is a 401."""

    def authenticate(self, request: Request) -> tuple[Caller, Caller] | None:
        """The caller, None without any header. Raises AuthenticationFailed."""
        caller = identify(request.META.get("HTTP_AUTHORIZATION"))
        return None if caller is None else (caller, caller)

    def authenticate_header(self, request: Request) -> str:
        """What a 401 asks for (RFC 6750)."""
        return 'Bearer realm="hookstation"'


class HasScope(BasePermission):
    """The key has one of the scopes that the view names for the method, and the channel's grant."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether to go on; False without a key (401). Raises PermissionDenied and NotFound."""
        caller = request.auth
        if not isinstance(caller, Caller):
            return False
        method = "GET" if request.method == "HEAD" else request.method
        wanted: tuple[str, ...] = getattr(view, "scopes", {}).get(method, ())
        authorize(caller, wanted, view.kwargs.get("channel"))
        return True


def identify(header: str | None) -> Caller | None:
    """Whose key an Authorization header holds, None without one. Raises AuthenticationFailed."""
    if header is None:
        return None
    scheme, _, text = header.partition(" ")
    parsed = keys.parse(text.strip()) if scheme.lower() == "bearer" else None
    if parsed is None:
        raise AuthenticationFailed("Send a key as 'Authorization: Bearer hsk_...'.", "bad_key")
    key_id, secret = parsed
    view = config_cache.key(key_id)
    if view is None or not keys.matches(secret, view.digest):
        raise AuthenticationFailed("There is no such key.", "bad_key")
    if view.revoked_at is not None:
        raise AuthenticationFailed("The key was revoked; ask for a new one.", "revoked_key")
    if view.expires_at is not None and view.expires_at <= clock.now():
        raise AuthenticationFailed("The key has expired; ask for a new one.", "expired_key")
    note_use(view)
    return Caller(view)


def sigv4_secret(access_key_id: str) -> tuple[Caller, str] | None:
    """Whose AWS access key id that is, and the secret to verify its signature with.

    None for one that is unknown, revoked or expired, and for a key without a secret of this kind.
    Nobody is authenticated by this alone: call ``note_use`` when the signature is right. Raises
    errors.KeyUnavailable (503 ``key_missing``) in a process without the encryption key.
    """
    key_id = keys.parse_access_key_id(access_key_id)
    view = config_cache.key(key_id) if key_id else None
    if view is None or not view.has_sigv4 or view.revoked_at is not None:
        return None
    if view.expires_at is not None and view.expires_at <= clock.now():
        return None
    return Caller(view), config_cache.sigv4_secret(view.key_id)


def authorize(caller: Caller, scopes: Sequence[str], channel: str | None) -> None:
    """Pass who has one of the ``scopes``, and the grant of the channel where there is one.

    Raises PermissionDenied and NotFound.
    """
    if scopes and not caller.may(*scopes):
        raise PermissionDenied(
            f"The key needs the scope {' or '.join(scopes)}.", code="missing_scope"
        )
    if caller.producer is not None and caller.producer.disabled:
        raise PermissionDenied("The producer is disabled.", code="producer_disabled")
    if channel is not None:
        _check_channel(caller, channel)


def caller_of(request: Request) -> Caller:
    """Who calls, behind HasScope."""
    caller: Any = request.auth
    assert isinstance(caller, Caller)
    return caller


def _check_channel(caller: Caller, slug: str) -> None:
    if not caller.may_use(slug):
        raise PermissionDenied(f"The key has no access to the channel {slug}.", code="no_grant")
    if caller.key.producer is None and caller.key.team_id is not None and not caller.may("admin"):
        channel = config_cache.channel(slug)
        # The same for what never was, before anything else is said: names cannot be guessed.
        if channel is None or not caller.sees(slug, channel.exposure):
            raise NotFound("unknown_channel", f"There is no channel {slug}.")


_noted: dict[str, float] = {}
"""When (`time.monotonic`) the use of a key was last noted."""
_uses: dict[str, datetime] = {}
"""Uses that are not written down yet."""


def write_uses() -> int:
    """Write down when keys were last used, in a thread of its own; how many there were.

    A request never does that: a database that takes no commit would hold it twice, the second time
    for its own. A note that cannot be written is left out.
    """
    count = 0
    while _uses:
        key_id, used_at = _uses.popitem()
        count += 1
        horizon = used_at - timedelta(seconds=USE_NOTE_INTERVAL_S)
        stale = Q(last_used_at=None) | Q(last_used_at__lt=horizon)
        with suppress(DatabaseFailure):
            # Not saved through the model: a use is no change of configuration.
            ApiKey.objects.filter(stale, key_id=key_id).update(last_used_at=used_at)
    return count


def note_use(key: KeyConfig) -> None:
    """Remember that a key was used; at most once a minute, and written down later."""
    ticks = time.monotonic()
    if ticks - _noted.get(key.key_id, float("-inf")) >= USE_NOTE_INTERVAL_S:
        _noted[key.key_id] = ticks
        _uses[key.key_id] = clock.now()
