"""Security: the headers that every answer carries, and what no line of the log may hold."""

import logging
import re
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from channels_app import origin

NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""For what is no page: API answers, metrics, files."""

_OWN = "default-src 'none'; connect-src 'self'; font-src 'self'; img-src 'self' data:; {}; "
_CLOSED = "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
STRICT = _OWN.format("script-src 'self'; style-src 'self'") + _CLOSED
"""For pages with templates of our own."""
CONSOLE = _OWN.format("script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'") + _CLOSED
"""The console's Alpine evaluates the expressions in its attributes; its widgets carry styles."""
DOCS = _OWN.format("script-src 'self'; style-src 'self' 'unsafe-inline'") + _CLOSED
"""Swagger sets styles from its scripts."""

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
"""On every answer, whatever the address."""


# The secret of an invitation, in a path or in a parameter that holds one.
_LINK = re.compile(r"(/-/join/|%2F-%2Fjoin%2F)[A-Za-z0-9_-]+", re.IGNORECASE)


class HideLinks(logging.Filter):
    """A link that opens something to whoever reads it is logged without what makes it work."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record through, such links shortened."""
        text = record.getMessage()
        if _LINK.search(text):
            record.msg, record.args = _LINK.sub(r"\1...", text), ()
        return True


class Origin:
    """Middleware: the audit log learns from where people act."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The answer; what was written down meanwhile says whence."""
        face = "console" if request.path_info.startswith("/admin/") else "portal"
        token = origin.current.set(origin.of(face, request.META))
        try:
            return self._get_response(request)
        finally:
            origin.current.reset(token)


class Headers:
    """Middleware: content security policy and friends, and the length of the answer."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The answer with its headers; those that a view set itself stay."""
        response = self._get_response(request)
        headers = response.headers
        for name, value in complete(list(response.items()), request.path_info):
            headers[name] = value
        if isinstance(response, HttpResponse) and "Content-Length" not in headers:
            headers["Content-Length"] = str(len(response.content))
        return response


def complete(headers: list[tuple[str, str]], path: str) -> list[tuple[str, str]]:
    """The headers of an answer with those that are missing; what a view set itself stays."""
    given = {name.lower() for name, _ in headers}
    wanted = [("Content-Security-Policy", policy(path)), *FIXED]
    if seconds := settings.SECURE_HSTS_SECONDS:
        # On plain HTTP, which only whoever ends TLS sees, a browser ignores it (RFC 6797, 8.1).
        wanted.append(("Strict-Transport-Security", f"max-age={seconds}"))
    return headers + [(name, value) for name, value in wanted if name.lower() not in given]


def policy(path: str) -> str:
    """The content security policy for an address."""
    for prefix, text in POLICIES:
        if path.startswith(prefix):
            return text
    return NOTHING
