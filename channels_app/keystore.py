"""Keystore: what all processes must agree on about keys: which one seals, and which ones sign.

Settings say which encryption keys a process has. The database says which of them seals, so that a
new key seals nothing until every process has read it (steps/reencrypt.py, `manage.py rotate_keys`).
Leases and acknowledgement addresses are signed with random keys that the database keeps sealed, and
that outlive both SECRET_KEY and each encryption key.
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
"""How old what a process knows may be: it seals so long with the former key at most."""
SIGNS_AFTER = timedelta(seconds=10)
"""A new key signs when every process has had the time to read it."""
OVERLAP = timedelta(days=30)
"""What a former key signed counts so long after its successor came."""
_BYTES = 32


class _Known(NamedTuple):
    """The rows as they were read, opened as far as this process can."""

    read_at: float
    """By `time.monotonic`."""
    encrypting_key_id: str
    sealing: Keyring | None
    """None without the key that seals."""
    keys: Sequence[tuple[datetime, bytes]]
    """Those that sign or still count, newest first, with the instant at which each was made."""

    @property
    def is_fresh(self) -> bool:
        """Whether it need not be read again."""
        return time.monotonic() - self.read_at <= FRESH_S


class _Uncommitted(threading.local):
    """What this thread reads while its open transaction has created a key."""

    known: _Known | None = None


_known: _Known | None = None
_uncommitted = _Uncommitted()


def encrypting_key_id() -> str:
    """The id of the key that seals, whether this process has it or not."""
    known = _read()
    return known.encrypting_key_id if known else keyring().primary_id


def refusal() -> str:
    """Why a process with these keys must not start, in sentences; '' if it may.

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
    """All keys, of which the installation's current one seals. Raises KeyUnavailable."""
    known = _read_or_begin()
    if known.sealing is None:
        raise KeyUnavailable(known.encrypting_key_id)
    return known.sealing


def signing_key(purpose: bytes) -> bytes:
    """What signs now. Raises KeyUnavailable.

    Asks the database only where nothing is known yet: a pump signs between two requests.
    """
    known = _known or _read_or_begin()
    if not known.keys:
        raise KeyUnavailable(known.encrypting_key_id)
    newest = clock.now() - SIGNS_AFTER
    # The oldest one is there from the start, and signs at once.
    key = next((key for made_at, key in known.keys if made_at <= newest), known.keys[-1][1])
    return _derived(key, purpose)


def signing_keys(purpose: bytes) -> list[bytes]:
    """What may have signed something that still counts. Raises KeyUnavailable."""
    known = _read_or_begin()
    if not known.keys:
        raise KeyUnavailable(known.encrypting_key_id)
    return [_derived(key, purpose) for _, key in known.keys]


def activate(key_id: str) -> None:
    """Let this key seal from now on, and a new one sign. Raises rules.encryption.KeyMissing.

    For rotations alone: every process must have the key already. Signing keys stay valid; those
    whose overlap is over are deleted.
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
    """Ask the database next time."""
    global _known
    _known = _uncommitted.known = None


def _read() -> _Known | None:
    """What the database says; None before anything was sealed."""
    global _known
    known = _known
    if known is None or not known.is_fresh:
        if _has_uncommitted_key():
            # Other threads must not use it: a rollback takes the key back.
            if (known := _uncommitted.known) is None or not known.is_fresh:
                known = _uncommitted.known = _load()
            return known
        known = _known = _load()
    return known


def _has_uncommitted_key() -> bool:
    """Whether an open transaction of this thread has created a key.

    Django drops the hooks of a transaction, or of a savepoint, that is rolled back.
    """
    return any(hook[1] is _forget_uncommitted for hook in connection.run_on_commit)


def _forget_uncommitted() -> None:
    _uncommitted.known = None


def _read_or_begin() -> _Known:
    """The same; the first key here is the installation's if nothing was sealed yet."""
    if known := _read():
        return known
    with suppress(IntegrityError), transaction.atomic():  # another process may be faster
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
    """How many of these, newest first, still count: the successor of the last came not long ago."""
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
