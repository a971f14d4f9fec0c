"""Let all processes agree which encryption key encrypts and which keys sign.

The settings list the encryption keys of a process. The database says which of them encrypts, so
that a new key is first used when every process has it (steps/reencrypt.py, `manage.py
rotate_keys`). Leases and acknowledgement addresses are signed with random keys, which the database
stores encrypted, and which outlive SECRET_KEY and each encryption key.
"""

import hmac
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import IntegrityError, connection, transaction

from channels_app import clock
from channels_app.conf import keyring
from channels_app.errors import KeyUnavailable
from channels_app.models import SigningKey
from channels_app.rules.encryption import Keyring, Unreadable

FRESH_S = 2.0
"""Maximum age of the cached rows in seconds. After a rotation the former key encrypts for as
long."""
SIGNS_AFTER = timedelta(seconds=10)
"""A new key signs after this time, in which every process reads it."""
OVERLAP = timedelta(days=30)
"""How long signatures of a former key stay valid after its successor was created."""
_BYTES = 32


class _Known(NamedTuple):
    """The rows as they were read, decrypted as far as this process can."""

    read_at: float
    """Reading of `time.monotonic`."""
    encrypting_key_id: str
    sealing: Keyring | None
    """None if this process lacks the encrypting key."""
    keys: Sequence[tuple[datetime, bytes]]
    """Keys that sign or are still valid, newest first, each with the time it was created."""

    @property
    def is_fresh(self) -> bool:
        """Whether the rows are recent enough not to be read again."""
        return time.monotonic() - self.read_at <= FRESH_S


class _Uncommitted(threading.local):
    """The rows as this thread reads them while its open transaction has created a key."""

    known: _Known | None = None


_known: _Known | None = None
_uncommitted = _Uncommitted()


def encrypting_key_id() -> str:
    """The id of the key that encrypts, whether this process has it or not."""
    known = _read()
    return known.encrypting_key_id if known else keyring().primary_id


def refusal() -> str:
    """Why a process with these keys must not start, for display; '' if it may start.

    Raises what the database raises.
    """
    known = _read()
    if known is None or known.sealing is not None:
        return ""
    return (
        f"This installation encrypts with the key {known.encrypting_key_id}, which is not among "
        f"the keys here ({', '.join(sorted(keyring().ids))}). Add it to "
        "HOOKSTATION_ENCRYPTION_KEYS. If that was not set before, the key was derived from "
        "SECRET_KEY: put the former value into SECRET_KEY_FALLBACKS."
    )


def encrypting_key() -> Keyring:
    """All keys; the installation's current one encrypts. Raises KeyUnavailable."""
    known = _read_or_begin()
    if known.sealing is None:
        raise KeyUnavailable(known.encrypting_key_id)
    return known.sealing


def signing_key(purpose: bytes) -> bytes:
    """The key that signs now, for one purpose. Raises KeyUnavailable.

    Queries the database only if nothing is cached, since a pump signs between two requests.
    """
    known = _known or _read_or_begin()
    if not known.keys:
        raise KeyUnavailable(known.encrypting_key_id)
    newest = clock.now() - SIGNS_AFTER
    # The oldest key signs at once, without a delay.
    key = next((key for made_at, key in known.keys if made_at <= newest), known.keys[-1][1])
    return _derived(key, purpose)


def signing_keys(purpose: bytes) -> list[bytes]:
    """The keys whose signatures are valid, for one purpose. Raises KeyUnavailable."""
    known = _read_or_begin()
    if not known.keys:
        raise KeyUnavailable(known.encrypting_key_id)
    return [_derived(key, purpose) for _, key in known.keys]


def activate(key_id: str) -> None:
    """Let this key encrypt from now on, and create a signing key.

    Raises rules.encryption.KeyMissing. For rotations only: every process must already have the key.
    Signing keys stay valid until their overlap ends; then they are deleted here.
    """
    ring = keyring().encrypting_with(key_id)
    with transaction.atomic():
        rows = list(SigningKey.objects.select_for_update().order_by("-id"))
        counting = _counting([row.created_at for row in rows])
        SigningKey.objects.filter(id__in=[row.id for row in rows[counting:]]).delete()
        for row in rows[:counting]:
            key = ring.open(bytes(row.sealed), _aad(row.id))
            SigningKey.objects.filter(id=row.id).update(
                sealed=ring.encrypt(key, _aad(row.id)), key_id=key_id
            )
        _create(rows[0].id + 1 if rows else 1, ring)
    forget()


def forget() -> None:
    """Discard the cache, so that the next call reads the database."""
    global _known
    _known = _uncommitted.known = None


def _read() -> _Known | None:
    """The rows of the database, at most ``FRESH_S`` old; None before the first key exists."""
    global _known
    known = _known
    if known is None or not known.is_fresh:
        if _has_uncommitted_key():
            # Other threads must not use this key: a rollback removes it.
            if (known := _uncommitted.known) is None or not known.is_fresh:
                known = _uncommitted.known = _load()
            return known
        known = _known = _load()
    return known


def _has_uncommitted_key() -> bool:
    """Whether an open transaction of this thread has created a key.

    Django drops the on-commit hooks of a transaction, or savepoint, that is rolled back.
    """
    return any(hook[1] is _forget_uncommitted for hook in connection.run_on_commit)


def _forget_uncommitted() -> None:
    _uncommitted.known = None


def _read_or_begin() -> _Known:
    """As `_read`, but create the installation's first signing key if there is none."""
    if known := _read():
        return known
    with suppress(IntegrityError), transaction.atomic():  # another process may create it first
        _create(1, keyring())
    begun = _read()
    assert begun is not None
    return begun


def _load() -> _Known | None:
    ticks, rows = time.monotonic(), _rows()
    if not rows:
        return None
    ring, newest = keyring(), rows[0]
    opened = {}
    for row in rows[: _counting([row.created_at for row in rows])]:
        with suppress(Unreadable):
            opened[row.id] = row.created_at, ring.open(bytes(row.sealed), _aad(row.id))
    if newest.id not in opened:
        return _Known(ticks, newest.key_id, None, [])
    return _Known(ticks, newest.key_id, ring.encrypting_with(newest.key_id), list(opened.values()))


def _rows() -> list[SigningKey]:
    return list(SigningKey.objects.order_by("-id"))


def _counting(made_at: Sequence[datetime]) -> int:
    """How many of these, newest first, are valid: the newest, and those replaced recently."""
    horizon = clock.now() - OVERLAP
    replaced_at = made_at[:-1]
    return 1 + sum(instant > horizon for instant in replaced_at) if made_at else 0


def _create(number: int, ring: Keyring) -> None:
    sealed = ring.encrypt(os.urandom(_BYTES), _aad(number))
    SigningKey.objects.create(
        id=number, sealed=sealed, key_id=ring.primary_id, created_at=clock.now()
    )
    _uncommitted.known = None
    transaction.on_commit(_forget_uncommitted)


def _aad(number: int) -> bytes:
    return f"signing key:{number}".encode()


def _derived(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, b"hookstation: " + purpose, "sha256")
