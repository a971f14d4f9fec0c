"""Invitations: the secret in a link into a team, and what is stored of it."""

import hashlib
import re
import secrets

DAYS = (1, 7, 30)
"""How long an invitation may stand."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


def generate() -> str:
    """A new secret of 256 bits, in letters that a link can hold."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str | None:
    """What is stored of a secret; None for what cannot be one."""
    if not _TOKEN.fullmatch(token):
        return None
    return hashlib.sha256(token.encode()).hexdigest()
