"""Generate, encode and decode signing secrets of consumers in the format of Standard Webhooks.

A shared secret is ``whsec_...`` (v1, HMAC-SHA256). A key pair of ``whsk_...`` (kept by the broker)
and ``whpk_...`` (public) signs with Ed25519 (v1a).
"""

import base64
from secrets import token_bytes

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SECRET, PRIVATE, PUBLIC = "whsec_", "whsk_", "whpk_"
KEY_BYTES = 32


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
    return _decode(text, SECRET, range(24, 65))


def decode_signing_key(text: str) -> bytes:
    """The 32 signing bytes of a ``whsk_...``. Raises ValueError with a sentence."""
    return _decode(text, PRIVATE, range(64, 65))[:KEY_BYTES]


def decode_public_key(text: str) -> bytes:
    """The 32 bytes of a ``whpk_...``. Raises ValueError with a sentence."""
    return _decode(text, PUBLIC, range(KEY_BYTES, KEY_BYTES + 1))


def encode(raw: bytes) -> str:
    """Standard base64 with padding, the encoding of secrets and signatures."""
    return base64.b64encode(raw).decode()


def _decode(text: str, prefix: str, sizes: range) -> bytes:
    try:
        raw = base64.b64decode(text.removeprefix(prefix), validate=True)
    except ValueError:
        raw = b""
    if not text.startswith(prefix) or len(raw) not in sizes:
        raise ValueError(f"The key must be {prefix} and {_size(sizes)} bytes in base64.")
    return raw


def _size(sizes: range) -> str:
    return f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
