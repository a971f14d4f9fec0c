"""Decrypt responses that the broker encrypted at rest, with its keys.

channels_app/core/encryption.py and channels_app/registry/data_encryption.py define the format.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PLAIN, ENCRYPTED = b"\x00", b"\x01"
"""First bytes of envelopes. Other responses are stored as received."""
_KEY_BYTES, _NONCE_AT, _CIPHERTEXT_AT = 32, 5, 17


def derived_key(secret: str) -> str:
    """Derive the key of an installation without configured keys from its SECRET_KEY."""
    kdf = HKDF(SHA256(), _KEY_BYTES, salt=None, info=b"hookstation: encryption at rest")
    return base64.b64encode(kdf.derive(secret.encode())).decode()


class DecryptionKeys:
    """The installation's encryption keys from the settings."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Raises ValueError for a text that is not base64."""
        keys = [base64.b64decode(text, validate=True) for text in texts]
        self._keys = {hashlib.sha256(key).digest()[:4]: key for key in keys}
        self.mac_key = hashlib.sha256(b"signatures of dead letters:" + b"".join(keys[:1])).digest()
        """For digests of encrypted content, so that nobody can guess the content by trying
        digests."""

    def decrypt_response(
        self, delivery_id: int, attempt: int, error: str, excerpt: bytes
    ) -> tuple[str, bytes] | None:
        """Return error and body of an encrypted response; None when no key here decrypts it."""
        key = self._keys.get(excerpt[1:_NONCE_AT])
        if key is None:
            return None
        aad = f"answer:{delivery_id}:{attempt}".encode()
        row_key = hmac.digest(key, b"hookstation row key:" + aad, "sha256")
        nonce, ciphertext = excerpt[_NONCE_AT:_CIPHERTEXT_AT], excerpt[_CIPHERTEXT_AT:]
        try:
            sizes, _, rest = AESGCM(row_key).decrypt(nonce, ciphertext, aad).partition(b"\n")
        except (InvalidTag, ValueError):
            return None
        error_ends, header_bytes = map(int, sizes.split())
        return rest[:error_ends].decode() or error, rest[error_ends + header_bytes :]
