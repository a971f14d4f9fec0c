"""Encrypt stored data; each ciphertext is bound to its row and cannot be decrypted in another one.

Sealing raises errors.KeyUnavailable in a process without the installation's current key, opening
in one without the key that sealed. It is a refusal, which forms and the API show, and Unreadable.
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
"""For all of them: who seals one is not told whose it is."""


def encrypt_body(message_id: int, body: bytes, *, encrypt: bool) -> tuple[bytes, str]:
    """A message's body as stored, and the id of the key that protects it."""
    return _protect(body, _body(message_id), encrypt=encrypt)


def decrypt_body(message_id: int, data: bytes, key_id: str = "") -> bytes:
    """The exact bytes the producer sent.

    ``key_id`` is the row's: where it names a key, what that key does not protect has been put there
    by somebody else. Raises rules.encryption.Unreadable and Changed.
    """
    return _unprotect(data, _body(message_id), key_id)


def store_headers(message_id: int, headers: Mapping[str, str], *, encrypt: bool) -> str:
    """A message's forwarded headers as JSON for their column: an object, or a sealed text."""
    text = json.dumps(headers) if headers else "{}"
    if not (headers and encrypt):
        return text
    return json.dumps(_in_letters(text.encode(), _headers(message_id)))


def decrypt_headers(message_id: int, stored: Mapping[str, str] | str) -> dict[str, str]:
    """The headers that ``store_headers`` stored, out of the parsed JSON of their column.

    Raises rules.encryption.Unreadable.
    """
    if isinstance(stored, Mapping):
        return dict(stored)
    headers: dict[str, str] = json.loads(_out_of_letters(stored, _headers(message_id)))
    return headers


def headers_of(message: Message) -> dict[str, str]:
    """A message's forwarded headers for people; none where nobody can open them any more."""
    try:
        return decrypt_headers(message.id, message.headers)
    except Unreadable:
        return {}


class StoredResponse(NamedTuple):
    """What a consumer said to one attempt."""

    error: str
    """Why it failed: the broker's words, or those of a pull consumer."""
    headers: str
    """Status line and headers."""
    body: bytes
    """The beginning of it."""


def encrypt_response(delivery_id: int, attempt: int, answer: StoredResponse) -> bytes:
    """All of an answer as one envelope, which stands in place of its body."""
    error, headers = answer.error.encode(), answer.headers.encode()
    plain = b"%d %d\n%b%b%b" % (len(error), len(headers), error, headers, answer.body)
    return keystore.encrypting_key().encrypt(plain, _answer(delivery_id, attempt))


def plain_response(body: bytes) -> bytes:
    """The body of an answer as stored in clear: as it is, unless it looks like an envelope."""
    return keyring().plain(body) if Keyring.is_envelope(body) else body


def decrypt_response(delivery_id: int, attempt: int, stored: StoredResponse) -> StoredResponse:
    """An answer out of its columns, sealed or not. Raises rules.encryption.Unreadable."""
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
    """The exact bytes that it publishes; as `decrypt_body`."""
    return _unprotect(data, _schedule(schedule_id), key_id)


def knows_key(key_id: str) -> bool:
    """Whether bodies that are protected by that key can still be opened."""
    return keyring().knows(key_id)


def encrypt_for_consumer(channel_id: int, client_id: str, plain: bytes) -> tuple[bytes, str]:
    """A secret or the static headers of a consumer as stored, and the id of the key used."""
    keys = keystore.encrypting_key()
    return keys.encrypt(plain, _consumer(channel_id, client_id)), keys.primary_id


def decrypt_for_consumer(channel_id: int, client_id: str, data: bytes) -> bytes:
    """What seal_for_consumer sealed. Raises rules.encryption.Unreadable."""
    return _decrypt(data, _consumer(channel_id, client_id))


def encrypt_sigv4(api_key_id: str, secret: str) -> bytes:
    """The secret access key of an API key (its public id) as stored."""
    return keystore.encrypting_key().encrypt(secret.encode(), _sigv4(api_key_id))


def decrypt_sigv4(api_key_id: str, data: bytes) -> str:
    """What seal_sigv4 sealed. Raises rules.encryption.Unreadable."""
    return _decrypt(data, _sigv4(api_key_id)).decode()


def encrypt_second_factor(plain: str) -> str:
    """The secret of a person's second factor as stored: in JSON, so in letters."""
    return _in_letters(plain.encode(), _SECOND_FACTOR)


def decrypt_second_factor(stored: str) -> str:
    """What seal_second_factor sealed. Raises rules.encryption.Unreadable."""
    return _out_of_letters(stored, _SECOND_FACTOR).decode()


def encrypted_with(stored: str) -> str:
    """Id of the key that sealed a second factor. Raises rules.encryption.Unreadable."""
    return keyring().key_id(b64decode(stored))


def generate_secret(consumer: Consumer) -> str:
    """Give the consumer a new shared secret (v1); its ``whsec_...`` is for its owner, once."""
    text, row = new_secret(consumer)
    row.save()
    return text


def generate_key_pair(consumer: Consumer) -> str:
    """Give the consumer a new Ed25519 pair (v1a); its public ``whpk_...``."""
    row = new_key_pair(consumer)
    row.save()
    return row.public_key


def new_secret(consumer: Consumer) -> tuple[str, ConsumerSecret]:
    """A shared secret as its owner is told it, and the row that is to be written."""
    text = secrets.new_secret()
    return text, _sealed(consumer, ConsumerSecret.Scheme.V1, secrets.decode_secret(text))


def chosen_secret(consumer: Consumer, secret: bytes) -> ConsumerSecret:
    """A shared secret that its owner brings, to be written."""
    return _sealed(consumer, ConsumerSecret.Scheme.V1, secret)


def new_key_pair(consumer: Consumer) -> ConsumerSecret:
    """An Ed25519 pair, to be written."""
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
    """Of what is never stored in clear: whoever put it there in clear is not us."""
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
