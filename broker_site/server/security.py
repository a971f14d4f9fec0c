"""Define the security headers of responses, and remove secrets from log lines."""

import logging
import re

from django.conf import settings

NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""For responses that are not pages: API responses, metrics, files."""

_OWN = "default-src 'none'; connect-src 'self'; font-src 'self'; img-src 'self' data:; {}; "
_CLOSED = "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
STRICT = _OWN.format("script-src 'self'; style-src 'self'") + _CLOSED
"""For pages with our own templates."""
CONSOLE = _OWN.format("script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'") + _CLOSED
"""The console's Alpine evaluates expressions in attributes; its widgets have inline styles."""
DOCS = _OWN.format("script-src 'self'; style-src 'self' 'unsafe-inline'") + _CLOSED
"""Swagger UI sets styles from its scripts."""

POLICIES = (
    ("/api/v1/", NOTHING),
    ("/admin/", CONSOLE),
    ("/api/docs", DOCS),
    ("/portal/", STRICT),
    ("/accounts/", STRICT),
)

FIXED = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)
"""On every response."""

# The secret of an invitation, in a path or in a parameter that contains one.
_LINK = re.compile(r"(/-/join/|%2F-%2Fjoin%2F)[A-Za-z0-9_-]+", re.IGNORECASE)


class HideLinks(logging.Filter):
    """Removes the secrets of invitation links from log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record; shorten such links."""
        text = record.getMessage()
        if _LINK.search(text):
            record.msg, record.args = _LINK.sub(r"\1...", text), ()
        return True


def complete(headers: list[tuple[str, str]], path: str) -> list[tuple[str, str]]:
    """Add the missing headers of a response; those set by a view stay."""
    given = {name.lower() for name, _ in headers}
    wanted = [("Content-Security-Policy", policy(path)), *FIXED]
    if seconds := settings.SECURE_HSTS_SECONDS:
        # Browsers ignore it on plain HTTP, which only a TLS proxy sees here (RFC 6797, 8.1).
        wanted.append(("Strict-Transport-Security", f"max-age={seconds}"))
    return headers + [(name, value) for name, value in wanted if name.lower() not in given]


def policy(path: str) -> str:
    """The content security policy for a path."""
    for prefix, text in POLICIES:
        if path.startswith(prefix):
            return text
    return NOTHING
