"""Generate and check API keys. A key is shown once and stored as a digest."""

import base64
import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass, field

SCOPES = ("publish", "register", "receive", "read", "replay", "sensitive", "admin")
"""What a key may do; ``admin`` implies the others."""

# Lower-case base32 throughout: one double click selects the whole key.
_KEY = re.compile(r"hsk_([a-z2-7]{16})_([a-z2-7]{52})")
# What AWS documents for AccessKeyId: 16 to 128 word characters (IAM API reference, AccessKey).
_ACCESS_PREFIX = "HSAK"
_ACCESS = re.compile(_ACCESS_PREFIX + "([A-Z2-7]{16})")
_ALPHANUMERIC = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key. ``text`` is shown to its owner once; the other two are stored."""

    key_id: str
    """Identifies the key in lists and logs; not secret."""
    text: str = field(repr=False)
    digest: str
    """Digest of the secret, for ``matches``: 64 hexadecimal characters."""


def generate() -> NewKey:
    """A new random key: 80 bits of id, 256 bits of secret."""
    key_id, secret = _random(10), _random(32)
    return NewKey(key_id=key_id, text=f"hsk_{key_id}_{secret}", digest=_digest(secret))


def generate_sigv4_secret() -> str:
    """A secret access key: 40 characters, as AWS's have, with 238 random bits.

    Only letters and digits, so that it needs no escaping in URLs such as Celery's
    ``sqs://id:secret@``.
    """
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(40))


def access_key_id(key_id: str) -> str:
    """The id of a key as AWS clients take it: 20 upper-case letters and digits."""
    return _ACCESS_PREFIX + key_id.upper()


def parse_access_key_id(text: str) -> str | None:
    """The id of a key from its access key id; None for text that cannot be one."""
    match = _ACCESS.fullmatch(text)
    return match[1].lower() if match else None


def parse(text: str) -> tuple[str, str] | None:
    """The key's id and its secret; None for text that cannot be a key."""
    match = _KEY.fullmatch(text)
    return (match[1], match[2]) if match else None


def matches(secret: str, digest: str) -> bool:
    """Whether a secret has this digest; compares in constant time."""
    return hmac.compare_digest(_digest(secret).encode(), digest.encode())


def _digest(secret: str) -> str:
    # 256 random bits cannot be guessed, so a slow hash would only delay every request.
    return hashlib.sha256(secret.encode()).hexdigest()


def _random(size: int) -> str:
    return base64.b32encode(secrets.token_bytes(size)).decode().rstrip("=").lower()
