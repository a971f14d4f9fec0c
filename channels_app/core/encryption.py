"""Encrypt stored bodies and secrets, each for one row, and generate signing secrets.

An envelope begins with its format.

* 0: data only. It can be read in any row, and changes are not detected.
* 1: AES-256-GCM: 4 bytes of key id, 12 bytes of nonce, the ciphertext and its tag. Each row has a
  key of its own, derived from the installation's key and the row's name (``aad``), so that random
  nonces never come near their limit of 2**32 encryptions with one key.
* 2: 4 bytes of key id, 16 bytes of digest, and unencrypted data. The digest is keyed BLAKE2b (RFC
  7693) over the row's name and the data: reading needs no key, but changes are detected.

A shared secret is ``whsec_...`` (v1, HMAC-SHA256). A key pair of ``whsk_...`` (kept by the broker)
and ``whpk_...`` (public) signs with Ed25519 (v1a).
"""

import base64
import hashlib
import hmac
import os
from collections.abc import Sequence
from secrets import token_bytes
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_PLAIN, _ENCRYPTED, _DIGESTED = b"\x00", b"\x01", b"\x02"
_FORMATS = (_PLAIN, _ENCRYPTED, _DIGESTED)
_KEY_BYTES = 32
KEY_ID_ENDS = _NONCE_AT = 5
_CIPHERTEXT_AT = _NONCE_AT + 12
_TAG_BYTES = _DIGEST_BYTES = 16
_DATA_AT = KEY_ID_ENDS + _DIGEST_BYTES
_SHORTEST = {_ENCRYPTED: _CIPHERTEXT_AT + _TAG_BYTES, _DIGESTED: _DATA_AT}
"""Bytes of an envelope of each format that a key protects, without contents."""
SECRET, PRIVATE, PUBLIC = "whsec_", "whsk_", "whpk_"
KEY_BYTES = 32


class Unreadable(Exception):
    """No key decrypts the data, or it is not an envelope; the message says which."""


class Changed(Unreadable):
    """The data is not what was stored: changed, damaged, or moved from another row."""

    def __init__(self) -> None:
        super().__init__("The stored data was changed or damaged, or belongs to another row.")


class KeyMissing(Unreadable):
    """This process does not have the key; another one may have it."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"The encryption key {key_id} is not installed.")
        self.key_id = key_id


class Keyring:
    """The installation's keys: the first one encrypts, all of them decrypt."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """``keys`` are 32 bytes each, the primary first. Raises ValueError with a sentence."""
        if not keys:
            raise ValueError("There must be at least one encryption key.")
        if any(len(key) != _KEY_BYTES for key in keys):
            raise ValueError(f"An encryption key has {_KEY_BYTES} bytes.")
        self._keys = {_id_of(key): key for key in keys}
        if len(self._keys) < len(set(keys)):
            raise ValueError("Two encryption keys have the same id; generate another one.")
        self._primary = _id_of(keys[0])
        self._digest_keys = {
            key_id: hmac.digest(key, b"hookstation digest key", "sha256")
            for key_id, key in self._keys.items()
        }

    @classmethod
    def from_texts(cls, texts: Sequence[str], secrets: Sequence[str] = ()) -> Self:
        """Build a keyring from the keys in the settings (base64) and keys derived from ``secrets``.

        The first key encrypts. An installation without configured keys has only the derived ones.
        If it configures keys later, it can still decrypt what the derived ones encrypted. Raises
        ValueError with a sentence that contains the position of the wrong key, never the key.
        """
        own = [_decode(text, place) for place, text in enumerate(texts, start=1)]
        return cls([*own, *map(_derived, secrets)])

    @property
    def primary_id(self) -> str:
        """The id of the key that encrypts: 8 hexadecimal characters."""
        return self._primary.hex()

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all keys."""
        return frozenset(key_id.hex() for key_id in self._keys)

    def encrypting_with(self, key_id: str) -> Self:
        """The same keys, with this one as the encrypting key. Raises KeyMissing."""
        if key_id not in self.ids:
            raise KeyMissing(key_id)
        ordered = sorted(self._keys.values(), key=lambda key: _id_of(key).hex() != key_id)
        return type(self)(ordered)

    def knows(self, key_id: str) -> bool:
        """Whether data encrypted with that key can be decrypted; '' means no key."""
        return not key_id or bytes.fromhex(key_id) in self._keys

    def encrypt(self, plain: bytes, aad: bytes) -> bytes:
        """An encrypted envelope that opens only with the same ``aad``, which names its row."""
        nonce = os.urandom(12)
        ciphertext = _cipher(self._keys[self._primary], aad).encrypt(nonce, plain, aad)
        return _ENCRYPTED + self._primary + nonce + ciphertext

    def plain(self, data: bytes) -> bytes:
        """An envelope of format 0: neither encrypted nor protected against changes."""
        return _PLAIN + data

    def digested(self, data: bytes, aad: bytes) -> bytes:
        """An envelope of format 2: unencrypted, opens only unchanged and with the same ``aad``."""
        return _DIGESTED + self._primary + self._digest(self._primary, aad, data) + data

    def open(self, envelope: bytes, aad: bytes) -> bytes:
        """Return the contents of an envelope of any format.

        Raises KeyMissing, and Changed if the envelope or ``aad`` differs in a single bit.
        """
        if envelope[:1] == _PLAIN:
            return envelope[1:]
        key_id = _protector(envelope)
        key = self._keys.get(key_id)
        if key is None:
            raise KeyMissing(key_id.hex())
        if envelope[:1] == _DIGESTED:
            data = envelope[_DATA_AT:]
            digest = self._digest(key_id, aad, data)
            if not hmac.compare_digest(digest, envelope[KEY_ID_ENDS:_DATA_AT]):
                raise Changed
            return data
        try:
            return _cipher(key, aad).decrypt(
                envelope[_NONCE_AT:_CIPHERTEXT_AT], envelope[_CIPHERTEXT_AT:], aad
            )
        except InvalidTag:
            raise Changed from None

    @staticmethod
    def is_envelope(data: bytes) -> bool:
        """Whether the data begins like an envelope."""
        return data[:1] in _FORMATS

    @staticmethod
    def is_encrypted(envelope: bytes) -> bool:
        """Whether the envelope cannot be read without its key."""
        return envelope[:1] == _ENCRYPTED

    @staticmethod
    def is_bare(envelope: bytes) -> bool:
        """Whether no key protects the envelope."""
        return envelope[:1] == _PLAIN

    def is_protected(self, envelope: bytes, key_id: str) -> bool:
        """Whether this key protects the envelope, judged by its header."""
        try:
            return self.key_id(envelope) == key_id
        except Unreadable:
            return False

    def _digest(self, key_id: bytes, aad: bytes, data: bytes) -> bytes:
        digest = hashlib.blake2b(aad, key=self._digest_keys[key_id], digest_size=_DIGEST_BYTES)
        digest.update(b"\0")  # separates the row's name, which has no null byte, from the data
        digest.update(data)
        return digest.digest()

    def key_id(self, envelope: bytes) -> str:
        """The id of the key that protects an envelope; '' if none does. Raises Unreadable."""
        return "" if envelope[:1] == _PLAIN else _protector(envelope).hex()


def generate_key() -> str:
    """A new key in the format of the settings."""
    return base64.b64encode(os.urandom(_KEY_BYTES)).decode()


def new_secret() -> str:
    """A shared secret for ``v1``: ``whsec_`` and 32 random bytes in base64."""
    return SECRET + encode(token_bytes(KEY_BYTES))


def new_signing_key() -> tuple[str, str]:
    """A key pair for ``v1a``: the private ``whsk_...`` and the public ``whpk_...``."""
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    return PRIVATE + encode(key.private_bytes_raw() + public), PUBLIC + encode(public)


def decode_secret(text: str) -> bytes:
    """The signing bytes of a ``whsec_...``. Raises ValueError with a sentence."""
    return _decode_secret(text, SECRET, range(24, 65))


def decode_signing_key(text: str) -> bytes:
    """The 32 signing bytes of a ``whsk_...``. Raises ValueError with a sentence."""
    return _decode_secret(text, PRIVATE, range(64, 65))[:KEY_BYTES]


def decode_public_key(text: str) -> bytes:
    """The 32 bytes of a ``whpk_...``. Raises ValueError with a sentence."""
    return _decode_secret(text, PUBLIC, range(KEY_BYTES, KEY_BYTES + 1))


def encode(raw: bytes) -> str:
    """Standard base64 with padding, the encoding of secrets and signatures."""
    return base64.b64encode(raw).decode()


def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()[:4]


def _decode(text: str, place: int) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise ValueError(f"Encryption key {place} is not base64 of {_KEY_BYTES} bytes.")
    return key


def _derived(secret: str) -> bytes:
    kdf = HKDF(SHA256(), _KEY_BYTES, salt=None, info=b"hookstation: encryption at rest")
    return kdf.derive(secret.encode())


def _cipher(key: bytes, aad: bytes) -> AESGCM:
    return AESGCM(hmac.digest(key, b"hookstation row key:" + aad, "sha256"))


def _protector(envelope: bytes) -> bytes:
    """The id of the key that protects an envelope. Raises Unreadable if none does."""
    shortest = _SHORTEST.get(envelope[:1])
    if shortest is None or len(envelope) < shortest:
        raise Unreadable("The stored data is not an envelope.")
    return envelope[1:KEY_ID_ENDS]


def _decode_secret(text: str, prefix: str, sizes: range) -> bytes:
    try:
        raw = base64.b64decode(text.removeprefix(prefix), validate=True)
    except ValueError:
        raw = b""
    if not text.startswith(prefix) or len(raw) not in sizes:
        raise ValueError(f"The key must be {prefix} and {_size(sizes)} bytes in base64.")
    return raw


def _size(sizes: range) -> str:
    return f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
