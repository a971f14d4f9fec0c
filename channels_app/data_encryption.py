"""Encrypt stored data. Each ciphertext is bound to its row and cannot be decrypted in another one.

Encryption raises errors.KeyUnavailable in a process without the installation's current key,
decryption in one without the key that was used. That error is both a BrokerError, which forms and
the API show, and an Unreadable.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import NamedTuple

from channels_app import keystore
from channels_app.conf import conf, keyring
from channels_app.errors import KeyUnavailable
from channels_app.models.consumer import Consumer, ConsumerSecret
from channels_app.models.message import Message
from channels_app.rules import secrets
from channels_app.rules.encryption import Changed, KeyMissing, Keyring, Unreadable

_SECOND_FACTOR = b"second factor"
"""The same for everybody: the code that encrypts a second factor does not know whose it is."""


def encrypt_body(message_id: int, body: bytes, *, encrypt: bool) -> tuple[bytes, str]:
    """Return a message's body as stored, and the id of the key that protects it."""
    return _protect(body, _body(message_id), encrypt=encrypt)


def decrypt_body(message_id: int, data: bytes, key_id: str = "") -> bytes:
    """Return the exact bytes that the producer sent.

    ``key_id`` is the row's. If it names a key and that key does not protect ``data``, the data was
    replaced. Raises rules.encryption.Unreadable and Changed.
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

    Raises rules.encryption.Unreadable.
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
    return keystore.encrypting_key().encrypt(plain, _answer(delivery_id, attempt))


def plain_response(body: bytes) -> bytes:
    """A response's body as stored unencrypted: unchanged, unless it looks like an envelope."""
    return keyring().plain(body) if Keyring.is_envelope(body) else body


def decrypt_response(delivery_id: int, attempt: int, stored: StoredResponse) -> StoredResponse:
    """A response from its columns, encrypted or not. Raises rules.encryption.Unreadable."""
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
    keys = keystore.encrypting_key()
    return keys.encrypt(plain, _consumer(channel_id, client_id)), keys.primary_id


def decrypt_for_consumer(channel_id: int, client_id: str, data: bytes) -> bytes:
    """Undo encrypt_for_consumer. Raises rules.encryption.Unreadable."""
    return _decrypt(data, _consumer(channel_id, client_id))


def encrypt_sigv4(api_key_id: str, secret: str) -> bytes:
    """The secret access key of an API key as stored; ``api_key_id`` is the key's public id."""
    return keystore.encrypting_key().encrypt(secret.encode(), _sigv4(api_key_id))


def decrypt_sigv4(api_key_id: str, data: bytes) -> str:
    """Undo encrypt_sigv4. Raises rules.encryption.Unreadable."""
    return _decrypt(data, _sigv4(api_key_id)).decode()


def encrypt_second_factor(plain: str) -> str:
    """The secret of a user's second factor as stored: base64, since it is part of JSON."""
    return _in_letters(plain.encode(), _SECOND_FACTOR)


def decrypt_second_factor(stored: str) -> str:
    """Undo encrypt_second_factor. Raises rules.encryption.Unreadable."""
    return _out_of_letters(stored, _SECOND_FACTOR).decode()


def encrypted_with(stored: str) -> str:
    """Id of the key that encrypted a second factor. Raises rules.encryption.Unreadable."""
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
    text = secrets.new_secret()
    return text, _sealed(consumer, ConsumerSecret.Scheme.V1, secrets.decode_secret(text))


def chosen_secret(consumer: Consumer, secret: bytes) -> ConsumerSecret:
    """The unsaved row of a shared secret that its owner chose."""
    return _sealed(consumer, ConsumerSecret.Scheme.V1, secret)


def new_key_pair(consumer: Consumer) -> ConsumerSecret:
    """The unsaved row of a new Ed25519 key pair."""
    signer, public_key = secrets.new_signing_key()
    scheme = ConsumerSecret.Scheme.V1A
    return _sealed(consumer, scheme, secrets.decode_signing_key(signer), public_key)


def _sealed(consumer: Consumer, scheme: str, plain: bytes, public_key: str = "") -> ConsumerSecret:
    sealed, key_id = encrypt_for_consumer(consumer.channel_id, consumer.client_id, plain)
    return ConsumerSecret(
        consumer=consumer, scheme=scheme, sealed=sealed, key_id=key_id, public_key=public_key
    )


def _protect(body: bytes, aad: bytes, *, encrypt: bool) -> tuple[bytes, str]:
    keys = keystore.encrypting_key()
    return (keys.encrypt if encrypt else keys.digested)(body, aad), keys.primary_id


def _unprotect(data: bytes, aad: bytes, key_id: str) -> bytes:
    keys = keyring()
    if key_id and not keys.is_protected(data, key_id):
        raise Changed
    if Keyring.is_bare(data) and conf().require_body_digests:
        raise Changed
    return _open(data, aad)


def _decrypt(envelope: bytes, aad: bytes) -> bytes:
    """Decrypt data that is never stored in the clear: an unencrypted envelope is a forgery."""
    if Keyring.is_envelope(envelope) and not Keyring.is_encrypted(envelope):
        raise Changed
    return _open(envelope, aad)


def _open(envelope: bytes, aad: bytes) -> bytes:
    try:
        return keyring().open(envelope, aad)
    except KeyMissing as missing:
        raise KeyUnavailable(missing.key_id) from None


def _in_letters(plain: bytes, aad: bytes) -> str:
    return b64encode(keystore.encrypting_key().encrypt(plain, aad)).decode()


def _out_of_letters(stored: str, aad: bytes) -> bytes:
    try:
        envelope = b64decode(stored)
    except (TypeError, ValueError):
        raise Changed from None
    return _decrypt(envelope, aad)


def _headers(message_id: int) -> bytes:
    return f"headers:{message_id}".encode()


def _answer(delivery_id: int, attempt: int) -> bytes:
    return f"answer:{delivery_id}:{attempt}".encode()


def _body(message_id: int) -> bytes:
    return f"message:{message_id}".encode()


def _schedule(schedule_id: int) -> bytes:
    return f"schedule:{schedule_id}".encode()


def _sigv4(api_key_id: str) -> bytes:
    return f"sigv4:{api_key_id}".encode()


def _consumer(channel_id: int, client_id: str) -> bytes:
    return f"consumer:{channel_id}:{client_id}".encode()
