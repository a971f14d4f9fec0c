"""Record through which interface and from which address this thread's work was requested."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from django.conf import settings

MAX_LENGTH = 100

current: ContextVar[str] = ContextVar("origin", default="")
"""``api 203.0.113.7``; empty outside an HTTP request. The audit log stores it."""


def of(face: str, meta: Mapping[str, Any]) -> str:
    """The origin of a request, from its WSGI environment; trusts the headers of proxies only."""
    forwarded = meta.get("HTTP_X_FORWARDED_FOR", "") if settings.ALLAUTH_TRUSTED_PROXY_COUNT else ""
    hops = [hop.strip() for hop in forwarded.split(",") if hop.strip()]
    hops.append(str(meta.get("REMOTE_ADDR", "")))
    address = hops[-1 - min(settings.ALLAUTH_TRUSTED_PROXY_COUNT, len(hops) - 1)]
    return f"{face} {address}"[:MAX_LENGTH].strip()
