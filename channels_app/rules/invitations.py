"""Generate the secret of an invitation link, and the digest that is stored."""

import hashlib
import re
import secrets

DAYS = (1, 7, 30)
"""Lifetimes of an invitation that can be chosen, in days."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


def generate() -> str:
    """A new secret of 256 bits, in characters that are safe in a URL."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str | None:
    """The digest of a secret, which is stored; None for text that cannot be a secret."""
    if not _TOKEN.fullmatch(token):
        return None
    return hashlib.sha256(token.encode()).hexdigest()
