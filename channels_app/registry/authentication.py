"""Identify the principal of an API key, and authorize it by scope and channel, for every door."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from django.db import Error as DatabaseFailure
from django.db.models import Q

from channels_app.access.principal import Principal
from channels_app.core import keys
from channels_app.core.errors import Forbidden, NotFound, Unauthenticated
from channels_app.database import clock
from channels_app.models import ApiKey
from channels_app.registry.cache import config_cache

USE_NOTE_INTERVAL_S = 60.0
NO_KEY = "Send an API key: Authorization: Bearer hsk_..."
_noted: dict[str, float] = {}
"""When the use of a key was last recorded, by `time.monotonic`."""
_uses: dict[str, datetime] = {}
"""Recorded uses that are not stored yet."""


def authenticate(
    meta: Mapping[str, Any], scopes: Sequence[str], channel: str | None = None
) -> Principal:
    """The principal of a request, who may do what one of the ``scopes`` allows.

    Of ``meta``, a WSGI environment, only ``HTTP_AUTHORIZATION`` is read. Raises Unauthenticated,
    also without that header, and what `authorize` raises.
    """
    principal = identify(meta.get("HTTP_AUTHORIZATION"))
    if principal is None:
        raise Unauthenticated("not_authenticated", NO_KEY)
    authorize(principal, scopes, channel)
    return principal


def identify(header: str | None) -> Principal | None:
    """The principal of an Authorization header; None without one. Raises Unauthenticated."""
    if header is None:
        return None
    scheme, _, text = header.partition(" ")
    parsed = keys.parse(text.strip()) if scheme.lower() == "bearer" else None
    if parsed is None:
        raise Unauthenticated("bad_key", "Send a key as 'Authorization: Bearer hsk_...'.")
    key_id, secret = parsed
    key = config_cache.key(key_id)
    if key is None or not keys.matches(secret, key.digest):
        raise Unauthenticated("bad_key", "There is no such key.")
    if key.revoked_at is not None:
        raise Unauthenticated("revoked_key", "The key was revoked; ask for a new one.")
    if key.expires_at is not None and key.expires_at <= clock.now():
        raise Unauthenticated("expired_key", "The key has expired; ask for a new one.")
    note_use(key_id)
    return key.principal


def sigv4_secret(access_key_id: str) -> tuple[Principal, str] | None:
    """The principal with this AWS access key id, and the secret that verifies its signature.

    None if the key is unknown, revoked or expired, or has no secret of this kind. This alone
    authenticates nobody: verify the signature, then call ``note_use``. Raises
    errors.KeyUnavailable (503 ``key_missing``) in a process without the encryption key.
    """
    key_id = keys.parse_access_key_id(access_key_id)
    key = config_cache.key(key_id) if key_id else None
    if key is None or not key.has_sigv4 or key.revoked_at is not None:
        return None
    if key.expires_at is not None and key.expires_at <= clock.now():
        return None
    return key.principal, config_cache.sigv4_secret(key.principal.key_id)


def authorize(principal: Principal, scopes: Sequence[str], channel: str | None) -> None:
    """Require one of the ``scopes``, and a grant of the channel if one is given.

    Raises Forbidden and NotFound.
    """
    principal.require(*scopes)
    if channel is not None:
        _check_channel(principal, channel)


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


def note_use(key_id: str) -> None:
    """Record that a key was used, at most once a minute; ``write_uses`` stores it later."""
    ticks = time.monotonic()
    if ticks - _noted.get(key_id, float("-inf")) >= USE_NOTE_INTERVAL_S:
        _noted[key_id] = ticks
        _uses[key_id] = clock.now()


def _check_channel(principal: Principal, slug: str) -> None:
    if not principal.may_use(slug):
        raise Forbidden("no_grant", f"The key has no access to the channel {slug}.")
    if principal.acts_for_team:
        channel = config_cache.channel(slug)
        # Same response as for a channel that does not exist, so that names cannot be probed.
        if channel is None or not principal.sees(slug, channel.exposure):
            raise NotFound("unknown_channel", f"There is no channel {slug}.")
