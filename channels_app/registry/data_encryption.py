"""Encrypt stored data with keys on which all processes agree.

The settings list the encryption keys of a process. The database says which of them encrypts, so
that a new key is first used when every process has it (registry/secrets.py, `manage.py
rotate_keys`). Leases and acknowledgement addresses are signed with random keys, which the database
stores encrypted, and which outlive SECRET_KEY and each encryption key.

Encryption raises errors.KeyUnavailable in a process without the installation's current key,
decryption in one without the key that was used. That error is both a BrokerError, which forms and
the API show, and an Unreadable.
"""

import hmac
import json
import os
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import IntegrityError, connection, transaction

from channels_app.conf import conf, keyring
from channels_app.core import encryption
from channels_app.core.encryption import Changed, KeyMissing, Keyring, Unreadable
from channels_app.core.errors import KeyUnavailable
from channels_app.database import clock
from channels_app.models import SigningKey
from channels_app.models.consumer import Consumer, ConsumerSecret
from channels_app.models.message import Message

FRESH_S = 2.0
"""Maximum age of the cached rows in seconds. After a rotation the former key encrypts for as
long."""
SIGNS_AFTER = timedelta(seconds=10)
"""A new key signs after this time, in which every process reads it."""
OVERLAP = timedelta(days=30)
"""How long signatures of a former key stay valid after its successor was created."""
_BYTES = 32
_SECOND_FACTOR = b"second factor"
"""The same for everybody: the code that encrypts a second factor does not know whose it is."""


class _StoredKeys(NamedTuple):
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


_stored: _StoredKeys | None = None


class _Uncommitted(threading.local):
    """The rows as this thread reads them while its open transaction has created a key."""

    stored: _StoredKeys | None = None


_uncommitted = _Uncommitted()


def encrypting_key_id() -> str:
    """The id of the key that encrypts, whether this process has it or not."""
    stored = _read()
    return stored.encrypting_key_id if stored else keyring().primary_id


def refusal() -> str:
    """Why a process with these keys must not start, for display; '' if it may start.

    Raises what the database raises.
    """
    stored = _read()
    if stored is None or stored.sealing is not None:
        return ""
    return (
        f"This installation encrypts with the key {stored.encrypting_key_id}, which is not among "
        f"the keys here ({', '.join(sorted(keyring().ids))}). Add it to "
        "HOOKSTATION_ENCRYPTION_KEYS. If that was not set before, the key was derived from "
        "SECRET_KEY: put the former value into SECRET_KEY_FALLBACKS."
    )


def encrypting_key() -> Keyring:
    """All keys; the installation's current one encrypts. Raises KeyUnavailable."""
    stored = _read_or_begin()
    if stored.sealing is None:
        raise KeyUnavailable(stored.encrypting_key_id)
    return stored.sealing


def signing_key(purpose: bytes) -> bytes:
    """The key that signs now, for one purpose. Raises KeyUnavailable.

    Queries the database only if nothing is cached, since a pump signs between two requests.
    """
    stored = _stored or _read_or_begin()
    if not stored.keys:
        raise KeyUnavailable(stored.encrypting_key_id)
    newest = clock.now() - SIGNS_AFTER
    # The oldest key signs at once, without a delay.
    key = next((key for made_at, key in stored.keys if made_at <= newest), stored.keys[-1][1])
    return _derived(key, purpose)


def signing_keys(purpose: bytes) -> list[bytes]:
    """The keys whose signatures are valid, for one purpose. Raises KeyUnavailable."""
    stored = _read_or_begin()
    if not stored.keys:
        raise KeyUnavailable(stored.encrypting_key_id)
    return [_derived(key, purpose) for _, key in stored.keys]


def activate(key_id: str) -> None:
    """Let this key encrypt from now on, and create a signing key.

    Raises core.encryption.KeyMissing. For rotations only: every process must already have the key.
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
    global _stored
    _stored = _uncommitted.stored = None


def encrypt_body(message_id: int, body: bytes, *, encrypt: bool) -> tuple[bytes, str]:
    """Return a message's body as stored, and the id of the key that protects it."""
    return _protect(body, _body(message_id), encrypt=encrypt)


def decrypt_body(message_id: int, data: bytes, key_id: str = "") -> bytes:
    """Return the exact bytes that the producer sent.

    ``key_id`` is the row's. If it names a key and that key does not protect ``data``, the data was
    replaced. Raises core.encryption.Unreadable and Changed.
    """
    return _unprotect(data, _body(message_id), key_id)


def store_headers(message_id: int, headers: Mapping[str, str], *, encrypt: bool) -> str:
    """A message's forwarded headers as JSON for their column: an object, or an encrypted string."""
    text = json.dumps(headers) if headers else "{}"
    if not (headers and encrypt):
        return text
    return json.dumps(_in_letters(text.encode(), _headers(message_id)))


def decrypt_headers(message_id: int, stored: Mapping[str, str] | str) -> dict[str, str]:
    """The headers that ``store_headers`` stored; ``stored`` is the parsed JSON of their column.

    Raises core.encryption.Unreadable.
    """
    if isinstance(stored, Mapping):
        return dict(stored)
    headers: dict[str, str] = json.loads(_out_of_letters(stored, _headers(message_id)))
    return headers


def headers_of(message: Message) -> dict[str, str]:
    """A message's forwarded headers for display; empty if they cannot be decrypted."""
    try:
        return decrypt_headers(message.id, message.headers)
    except Unreadable:
        return {}


class StoredResponse(NamedTuple):
    """A consumer's response to one attempt."""

    error: str
    """Why the attempt failed: the broker's text, or that of a pull consumer."""
    headers: str
    """Status line and headers."""
    body: bytes
    """The beginning of the body."""


def encrypt_response(delivery_id: int, attempt: int, answer: StoredResponse) -> bytes:
    """Encrypt the whole response into one envelope, which is stored in the column of its body."""
    error, headers = answer.error.encode(), answer.headers.encode()
    plain = b"%d %d\n%b%b%b" % (len(error), len(headers), error, headers, answer.body)
    return encrypting_key().encrypt(plain, _answer(delivery_id, attempt))


def plain_response(body: bytes) -> bytes:
    """A response's body as stored unencrypted: unchanged, unless it looks like an envelope."""
    return keyring().plain(body) if Keyring.is_envelope(body) else body


def decrypt_response(delivery_id: int, attempt: int, stored: StoredResponse) -> StoredResponse:
    """A response from its columns, encrypted or not. Raises core.encryption.Unreadable."""
    if not Keyring.is_envelope(stored.body):
        return stored
    opened = _open(stored.body, _answer(delivery_id, attempt))
    if not Keyring.is_encrypted(stored.body):
        return stored._replace(body=opened)
    sizes, _, rest = opened.partition(b"\n")
    error_ends, header_bytes = map(int, sizes.split())
    headers_end = error_ends + header_bytes
    error, headers = rest[:error_ends].decode(), rest[error_ends:headers_end].decode()
    return StoredResponse(error or stored.error, headers, rest[headers_end:])


def encrypt_schedule(schedule_id: int, body: bytes, *, encrypt: bool) -> tuple[bytes, str]:
    """A schedule's body as stored, and the id of the key that protects it."""
    return _protect(body, _schedule(schedule_id), encrypt=encrypt)


def decrypt_schedule(schedule_id: int, data: bytes, key_id: str = "") -> bytes:
    """The exact bytes that the schedule publishes; see `decrypt_body`."""
    return _unprotect(data, _schedule(schedule_id), key_id)


def knows_key(key_id: str) -> bool:
    """Whether bodies protected by that key can still be decrypted."""
    return keyring().knows(key_id)


def encrypt_for_consumer(channel_id: int, client_id: str, plain: bytes) -> tuple[bytes, str]:
    """A secret or the static headers of a consumer as stored, and the id of the key used."""
    keys = encrypting_key()
    return keys.encrypt(plain, _consumer(channel_id, client_id)), keys.primary_id


def decrypt_for_consumer(channel_id: int, client_id: str, data: bytes) -> bytes:
    """Undo encrypt_for_consumer. Raises core.encryption.Unreadable."""
    return _decrypt(data, _consumer(channel_id, client_id))


def encrypt_sigv4(api_key_id: str, secret: str) -> bytes:
    """The secret access key of an API key as stored; ``api_key_id`` is the key's public id."""
    return encrypting_key().encrypt(secret.encode(), _sigv4(api_key_id))


def decrypt_sigv4(api_key_id: str, data: bytes) -> str:
    """Undo encrypt_sigv4. Raises core.encryption.Unreadable."""
    return _decrypt(data, _sigv4(api_key_id)).decode()


def encrypt_second_factor(plain: str) -> str:
    """The secret of a user's second factor as stored: base64, since it is part of JSON."""
    return _in_letters(plain.encode(), _SECOND_FACTOR)


def decrypt_second_factor(stored: str) -> str:
    """Undo encrypt_second_factor. Raises core.encryption.Unreadable."""
    return _out_of_letters(stored, _SECOND_FACTOR).decode()


def encrypted_with(stored: str) -> str:
    """Id of the key that encrypted a second factor. Raises core.encryption.Unreadable."""
    return keyring().key_id(b64decode(stored))


def generate_secret(consumer: Consumer) -> str:
    """Give the consumer a new shared secret (v1). Return its ``whsec_...``, to be shown once."""
    text, row = new_secret(consumer)
    row.save()
    return text


def generate_key_pair(consumer: Consumer) -> str:
    """Give the consumer a new Ed25519 key pair (v1a). Return its public ``whpk_...``."""
    row = new_key_pair(consumer)
    row.save()
    return row.public_key


def new_secret(consumer: Consumer) -> tuple[str, ConsumerSecret]:
    """A shared secret as its owner sees it, and its unsaved row."""
    text = encryption.new_secret()
    return text, _sealed(consumer, ConsumerSecret.Scheme.V1, encryption.decode_secret(text))


def chosen_secret(consumer: Consumer, secret: bytes) -> ConsumerSecret:
    """The unsaved row of a shared secret that its owner chose."""
    return _sealed(consumer, ConsumerSecret.Scheme.V1, secret)


def new_key_pair(consumer: Consumer) -> ConsumerSecret:
    """The unsaved row of a new Ed25519 key pair."""
    signer, public_key = encryption.new_signing_key()
    scheme = ConsumerSecret.Scheme.V1A
    return _sealed(consumer, scheme, encryption.decode_signing_key(signer), public_key)


def _read() -> _StoredKeys | None:
    """The rows of the database, at most ``FRESH_S`` old; None before the first key exists."""
    global _stored
    stored = _stored
    if stored is None or not stored.is_fresh:
        if _has_uncommitted_key():
            # Other threads must not use this key: a rollback removes it.
            if (stored := _uncommitted.stored) is None or not stored.is_fresh:
                stored = _uncommitted.stored = _load()
            return stored
        stored = _stored = _load()
    return stored


def _has_uncommitted_key() -> bool:
    """Whether an open transaction of this thread has created a key.

    Django drops the on-commit hooks of a transaction, or savepoint, that is rolled back.
    """
    return any(hook[1] is _forget_uncommitted for hook in connection.run_on_commit)


def _forget_uncommitted() -> None:
    _uncommitted.stored = None


def _load() -> _StoredKeys | None:
    ticks, rows = time.monotonic(), _rows()
    if not rows:
        return None
    ring, newest = keyring(), rows[0]
    opened = {}
    for row in rows[: _counting([row.created_at for row in rows])]:
        with suppress(Unreadable):
            opened[row.id] = row.created_at, ring.open(bytes(row.sealed), _aad(row.id))
    if newest.id not in opened:
        return _StoredKeys(ticks, newest.key_id, None, [])
    return _StoredKeys(
        ticks, newest.key_id, ring.encrypting_with(newest.key_id), list(opened.values())
    )


def _rows() -> list[SigningKey]:
    return list(SigningKey.objects.order_by("-id"))


def _counting(made_at: Sequence[datetime]) -> int:
    """How many of these, newest first, are valid: the newest, and those replaced recently."""
    oldest = clock.now() - OVERLAP
    replaced_at = made_at[:-1]
    return 1 + sum(instant > oldest for instant in replaced_at) if made_at else 0


def _aad(number: int) -> bytes:
    return f"signing key:{number}".encode()


def _read_or_begin() -> _StoredKeys:
    """As `_read`, but create the installation's first signing key if there is none."""
    if stored := _read():
        return stored
    with suppress(IntegrityError), transaction.atomic():  # another process may create it first
        _create(1, keyring())
    begun = _read()
    assert begun is not None
    return begun


def _create(number: int, ring: Keyring) -> None:
    sealed = ring.encrypt(os.urandom(_BYTES), _aad(number))
    SigningKey.objects.create(
        id=number, sealed=sealed, key_id=ring.primary_id, created_at=clock.now()
    )
    _uncommitted.stored = None
    transaction.on_commit(_forget_uncommitted)


def _derived(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, b"hookstation: " + purpose, "sha256")


def _protect(body: bytes, aad: bytes, *, encrypt: bool) -> tuple[bytes, str]:
    keys = encrypting_key()
    return (keys.encrypt if encrypt else keys.digested)(body, aad), keys.primary_id


def _body(message_id: int) -> bytes:
    return f"message:{message_id}".encode()


def _unprotect(data: bytes, aad: bytes, key_id: str) -> bytes:
    keys = keyring()
    if key_id and not keys.is_protected(data, key_id):
        raise Changed
    if Keyring.is_bare(data) and conf().require_body_digests:
        raise Changed
    return _open(data, aad)


def _open(envelope: bytes, aad: bytes) -> bytes:
    try:
        return keyring().open(envelope, aad)
    except KeyMissing as missing:
        raise KeyUnavailable(missing.key_id) from None


def _in_letters(plain: bytes, aad: bytes) -> str:
    return b64encode(encrypting_key().encrypt(plain, aad)).decode()


def _headers(message_id: int) -> bytes:
    return f"headers:{message_id}".encode()


def _out_of_letters(stored: str, aad: bytes) -> bytes:
    try:
        envelope = b64decode(stored)
    except (TypeError, ValueError):
        raise Changed from None
    return _decrypt(envelope, aad)


def _decrypt(envelope: bytes, aad: bytes) -> bytes:
    """Decrypt data that is never stored in the clear: an unencrypted envelope is a forgery."""
    if Keyring.is_envelope(envelope) and not Keyring.is_encrypted(envelope):
        raise Changed
    return _open(envelope, aad)


def _answer(delivery_id: int, attempt: int) -> bytes:
    return f"answer:{delivery_id}:{attempt}".encode()


def _schedule(schedule_id: int) -> bytes:
    return f"schedule:{schedule_id}".encode()


def _consumer(channel_id: int, client_id: str) -> bytes:
    return f"consumer:{channel_id}:{client_id}".encode()


def _sigv4(api_key_id: str) -> bytes:
    return f"sigv4:{api_key_id}".encode()


def _sealed(consumer: Consumer, scheme: str, plain: bytes, public_key: str = "") -> ConsumerSecret:
    sealed, key_id = encrypt_for_consumer(consumer.channel_id, consumer.client_id, plain)
    return ConsumerSecret(
        consumer=consumer, scheme=scheme, sealed=sealed, key_id=key_id, public_key=public_key
    )
