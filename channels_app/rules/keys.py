"""API keys: made once, shown once, stored as a digest, and what each may do."""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field

SCOPES = ("publish", "register", "receive", "read", "replay", "sensitive", "admin")
"""What a key can be allowed to do; ``admin`` implies the others."""

# Lower-case base32 throughout: one double click selects the whole key.
_KEY = re.compile(r"hsk_([a-z2-7]{16})_([a-z2-7]{52})")


@dataclass(frozen=True, slots=True)
class NewKey:
    """A fresh key. ``text`` is for its owner's eyes, once; the other two are stored."""

    key_id: str
    """Names the key in lists and logs; not secret."""
    text: str = field(repr=False)
    digest: str
    """What ``matches`` compares with: 64 hexadecimal characters."""


def mint() -> NewKey:
    """A new random key: 80 bits of name, 256 bits of secret."""
    key_id, secret = _random(10), _random(32)
    return NewKey(key_id=key_id, text=f"hsk_{key_id}_{secret}", digest=_digest(secret))


def parse(text: str) -> tuple[str, str] | None:
    """The key's id and its secret, None for what cannot be a key."""
    found = _KEY.fullmatch(text)
    return (found[1], found[2]) if found else None


def matches(secret: str, digest: str) -> bool:
    """Whether a secret belongs to a stored digest, in constant time."""
    return hmac.compare_digest(_digest(secret).encode(), digest.encode())


def allows(scopes: Collection[str], wanted: str) -> bool:
    """Whether a key with these scopes may do what is wanted."""
    return wanted in scopes or "admin" in scopes


def _digest(secret: str) -> str:
    # 256 random bits cannot be guessed, so a slow hash would only cost every request its time.
    return hashlib.sha256(secret.encode()).hexdigest()


def _random(size: int) -> str:
    return base64.b32encode(secrets.token_bytes(size)).decode().rstrip("=").lower()
