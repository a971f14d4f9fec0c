"""Identify callers by API key, and authorize them by scopes and channel grants, for every door."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import Error as DatabaseFailure
from django.db.models import Q

from channels_app.core import keys
from channels_app.core.access import Tenant
from channels_app.core.errors import Forbidden, NotFound, Unauthenticated
from channels_app.database import clock
from channels_app.models import ApiKey, Producer
from channels_app.registry.cache import KeyConfig, config_cache

USE_NOTE_INTERVAL_S = 60.0
NO_KEY = "Send an API key: Authorization: Bearer hsk_..."
_noted: dict[str, float] = {}
"""When the use of a key was last recorded, by `time.monotonic`."""
_uses: dict[str, datetime] = {}
"""Recorded uses that are not stored yet."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of the API key of a request."""

    key: KeyConfig
    is_authenticated: bool = True

    @property
    def actor(self) -> str:
        """The name in the audit log."""
        return f"key:{self.key.key_id}"

    @property
    def producer(self) -> Producer | None:
        """The producer that the key belongs to; None for a key of a team or the installation."""
        return self.key.producer

    @property
    def tenant(self) -> Tenant:
        """The tenant whose objects the caller can access."""
        return Tenant(self.key.team_id, everything="admin" in self.key.scopes)

    @property
    def owner(self) -> tuple[str, int]:
        """Whom a limit on concurrency counts: the key's team, its producer, or the key itself."""
        if self.key.team_id is not None:
            return "team", self.key.team_id
        if self.key.producer is not None:
            return "producer", self.key.producer.id
        return "key", self.key.id

    def may(self, *scopes: str) -> bool:
        """Whether the key has one of these scopes."""
        return any(keys.allows(self.key.scopes, scope) for scope in scopes)

    def may_use(self, channel: str) -> bool:
        """Whether the key may use this channel. A key without channels may use all of them."""
        granted = self.key.channels
        return not granted or channel in granted or "admin" in self.key.scopes

    def may_publish(self, channel: str) -> bool:
        """Whether the caller may publish on the channel with this name, and can see it."""
        view = config_cache.channel(channel)
        return self.may("publish") and view is not None and self.sees(channel, view.exposure)

    def sees(self, channel: str, exposure: str) -> bool:
        """Whether the caller can see the channel: a team's key must name internal ones (S1-21)."""
        if not self.may_use(channel):
            return False
        of_a_team = self.key.producer is None and self.key.team_id is not None
        named = channel in self.key.channels or "admin" in self.key.scopes
        return exposure == "external" or named or not of_a_team


def authenticate(
    meta: Mapping[str, Any], scopes: Sequence[str], channel: str | None = None
) -> Caller:
    """The caller of a request, who may do what one of the ``scopes`` allows.

    Of ``meta``, a WSGI environment, only ``HTTP_AUTHORIZATION`` is read. Raises Unauthenticated,
    also without that header, and what `authorize` raises.
    """
    caller = identify(meta.get("HTTP_AUTHORIZATION"))
    if caller is None:
        raise Unauthenticated("not_authenticated", NO_KEY)
    authorize(caller, scopes, channel)
    return caller


def identify(header: str | None) -> Caller | None:
    """The caller of an Authorization header; None without one. Raises Unauthenticated."""
    if header is None:
        return None
    scheme, _, text = header.partition(" ")
    parsed = keys.parse(text.strip()) if scheme.lower() == "bearer" else None
    if parsed is None:
        raise Unauthenticated("bad_key", "Send a key as 'Authorization: Bearer hsk_...'.")
    key_id, secret = parsed
    view = config_cache.key(key_id)
    if view is None or not keys.matches(secret, view.digest):
        raise Unauthenticated("bad_key", "There is no such key.")
    if view.revoked_at is not None:
        raise Unauthenticated("revoked_key", "The key was revoked; ask for a new one.")
    if view.expires_at is not None and view.expires_at <= clock.now():
        raise Unauthenticated("expired_key", "The key has expired; ask for a new one.")
    note_use(view)
    return Caller(view)


def sigv4_secret(access_key_id: str) -> tuple[Caller, str] | None:
    """The caller with this AWS access key id, and the secret that verifies its signature.

    None if the key is unknown, revoked or expired, or has no secret of this kind. This alone
    authenticates nobody: verify the signature, then call ``note_use``. Raises
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
    """Require one of the ``scopes``, and a grant of the channel if one is given.

    Raises Forbidden and NotFound.
    """
    if scopes and not caller.may(*scopes):
        raise Forbidden("missing_scope", f"The key needs the scope {' or '.join(scopes)}.")
    if caller.producer is not None and caller.producer.disabled:
        raise Forbidden("producer_disabled", "The producer is disabled.")
    if channel is not None:
        _check_channel(caller, channel)


def write_uses() -> int:
    """Store when keys were last used, in a background thread; return the number of keys.

    A request does not store its own use: while the database does not commit, it would wait twice,
    for this and for its own commit. Uses that cannot be stored are dropped.
    """
    count = 0
    while _uses:
        key_id, used_at = _uses.popitem()
        count += 1
        noted_before = used_at - timedelta(seconds=USE_NOTE_INTERVAL_S)
        stale = Q(last_used_at=None) | Q(last_used_at__lt=noted_before)
        with suppress(DatabaseFailure):
            # Without save(): a use is not a change of configuration.
            ApiKey.objects.filter(stale, key_id=key_id).update(last_used_at=used_at)
    return count


def note_use(key: KeyConfig) -> None:
    """Record that a key was used, at most once a minute; ``write_uses`` stores it later."""
    ticks = time.monotonic()
    if ticks - _noted.get(key.key_id, float("-inf")) >= USE_NOTE_INTERVAL_S:
        _noted[key.key_id] = ticks
        _uses[key.key_id] = clock.now()


def _check_channel(caller: Caller, slug: str) -> None:
    if not caller.may_use(slug):
        raise Forbidden("no_grant", f"The key has no access to the channel {slug}.")
    if caller.key.producer is None and caller.key.team_id is not None and not caller.may("admin"):
        channel = config_cache.channel(slug)
        # Same response as for a channel that does not exist, so that names cannot be probed.
        if channel is None or not caller.sees(slug, channel.exposure):
            raise NotFound("unknown_channel", f"There is no channel {slug}.")
